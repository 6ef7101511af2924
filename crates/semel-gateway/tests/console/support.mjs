// Gateways as processes, services that misbehave, and browsers that are watched.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { createServer as createSocket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const PATIENCE = 60_000;
export const AXE = readFileSync(fileURLToPath(import.meta.resolve("axe-core/axe.min.js")), "utf8");

export async function eventually(what, holds) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await holds();
    if (found) return found;
    assert(Date.now() < end, `not within ${PATIENCE} ms: ${what}`);
    await new Promise((then) => setTimeout(then, 50));
  }
}

/** Ends when the test does, whatever becomes of it. */
export class Rooms {
  #ends = [];
  folder = mkdtempSync(join(tmpdir(), "semel-console-"));

  end(how) {
    this.#ends.push(how);
  }

  async close() {
    for (const end of this.#ends.reverse()) await end();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

async function served(rooms, handler) {
  const server = createServer(handler).listen(0, "127.0.0.1");
  await once(server, "listening");
  rooms.end(() => {
    server.closeAllConnections();
    return new Promise((then) => server.close(then));
  });
  return server.address().port;
}

/** A service: `react` says what becomes of a request, and `ids` what it was given. */
export async function service(rooms) {
  const shop = {
    ids: [],
    react: (_, response) => {
      response.writeHead(201, { "content-type": "application/json", "x-receipt": "r-1" });
      response.end('{"id":12345678901234567890,"customer":"Ada Lovelace","lines":[{"sku":"apple","n":2}]}');
    },
  };
  const port = await served(rooms, (asked, response) => {
    shop.ids.push(asked.headers["idempotency-id"]);
    asked.resume().on("end", () => shop.react(asked, response));
  });
  shop.url = `http://127.0.0.1:${port}`;
  return shop;
}

export const LOSE = (asked) => asked.socket.destroy();
export const HANG = () => {};
export const BYTES = (_, response) => {
  response.writeHead(200, { "content-type": "application/octet-stream" });
  response.end(Buffer.from([0, 255, 1, 254, 137, 80, 78, 71]));
};

/** A page of another site: what it holds is sent as it is. */
export async function site(rooms, html) {
  const port = await served(rooms, (_, response) => {
    response.writeHead(200, { "content-type": "text/html" });
    response.end(html);
  });
  return port;
}

/** A proxy that serves an origin under a path, as nginx does. */
export async function prefixed(rooms, prefix, origin) {
  const port = await served(rooms, (asked, response) => {
    if (!asked.url.startsWith(prefix)) {
      response.writeHead(404).end("outside");
      return;
    }
    const { method, headers } = asked;
    const to = request(origin + asked.url.slice(prefix.length - 1), { method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    to.on("error", () => response.writeHead(502).end());
    asked.pipe(to);
  });
  return `http://127.0.0.1:${port}${prefix}`;
}

const TOKEN = (name) => `0123456789abcdef-${name}`;
export const token = TOKEN;

/** Tokens for these names and roles, as the configuration file has them. */
export function tokens(roles) {
  const text = Object.entries(roles).map(([name, role]) => {
    const digest = createHash("sha256").update(TOKEN(name)).digest("hex");
    return `[[tokens]]\nname = "${name}"\nsha256 = "${digest}"\nrole = "${role}"\n`;
  });
  return text.join("");
}

/** `semel serve` as a process. */
export async function gateway(rooms, upstream, { flags = [], config = "", store, listen = "127.0.0.1:0", admin = "127.0.0.1:0" } = {}) {
  const file = join(rooms.folder, "semel.toml");
  writeFileSync(file, config);
  const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("SEMEL_")));
  const child = spawn(process.env.SEMEL_BIN, [
    "serve", "--upstream", upstream, "--config", file, "--store", store ?? `file:${join(rooms.folder, "records")}`,
    "--listen", listen, "--admin", admin, "--log-format", "json", "--note", "method,path,request-id,trace-id", ...flags,
  ], { env: environment, stdio: ["ignore", "ignore", "pipe"] });
  const log = [];
  const [url, adminUrl] = await new Promise((then, fail) => {
    createInterface({ input: child.stderr }).on("line", (line) => {
      log.push(line);
      // A panic is no JSON: the test says so at its end.
      const said = line.startsWith("{") ? JSON.parse(line) : {};
      if (said.message === "serving") then([`http://${said.listen}`, `http://${said.admin}`]);
    });
    child.on("exit", () => fail(new Error(`the gateway ended: ${log.join("\n")}`)));
  });
  const ended = once(child, "exit");
  const kill = async (signal = "SIGKILL") => {
    child.kill(signal);
    await ended;
  };
  rooms.end(async () => {
    await kill();
    assert.ok(!log.some((line) => line.includes("panicked")), log.join("\n"));
  });
  return { url, admin: adminUrl, log, kill, file, reload: () => child.kill("SIGHUP") };
}

export function order(at, key, { path = "/v1/orders", headers = {}, body = '{"sku":"apple"}' } = {}) {
  return fetch(at.url + path, {
    method: "POST",
    headers: { "idempotency-key": `"${key}"`, "content-type": "application/json", "x-request-id": "req-7f3a", ...headers },
    body,
  });
}

/** A Redis of its own, which can be killed. */
export async function redis(rooms) {
  const port = await new Promise((then) => {
    const probe = createSocket().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => then(port));
    });
  });
  const child = spawn("redis-server", ["--port", port, "--bind", "127.0.0.1", "--dir", rooms.folder, "--appendonly", "yes"], { stdio: ["ignore", "pipe", "ignore"] });
  const ended = once(child, "exit");
  await new Promise((then) => createInterface({ input: child.stdout }).on("line", (line) => line.includes("Ready to accept") && then()));
  const kill = async () => {
    child.kill("SIGKILL");
    await ended;
  };
  rooms.end(kill);
  return { url: `redis://127.0.0.1:${port}`, kill };
}

/** A browser, and what its pages complain of. */
export async function browser(rooms) {
  const program = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"],
  });
  rooms.end(() => program.close());
  return program;
}

/** A page of a browser of its own: its errors, and the hosts that it asked. */
export async function visitor(program, options = {}) {
  const context = await program.newContext({ viewport: { width: 1280, height: 900 }, timezoneId: "Europe/Berlin", locale: "en-GB", reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.errors = [];
  page.hosts = new Set();
  page.on("console", (said) => ["error", "warning"].includes(said.type()) && page.errors.push(`${page.url()}: ${said.text()}`));
  page.on("pageerror", (error) => page.errors.push(`${page.url()}: ${error}`));
  page.on("request", (asked) => asked.url().startsWith("data:") || page.hosts.add(new URL(asked.url()).host));
  return page;
}

export async function signIn(page, admin, name) {
  await page.goto(`${admin}/`);
  await page.getByLabel("Token").fill(TOKEN(name));
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
}
