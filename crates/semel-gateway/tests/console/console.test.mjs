// The console as an operator meets it: in a browser, before a real gateway.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import * as s from "./support.mjs";

const ROLES = { reader: "read-only", ada: "operator", ben: "operator", root: "admin" };
const rooms = new s.Rooms();
let program;
before(async () => {
  program = await s.browser(rooms);
});
after(() => rooms.close());

/** A test with rooms of its own. */
function it(name, body) {
  test(name, { timeout: 5 * s.PATIENCE }, async () => {
    const own = new s.Rooms();
    try {
      await body(own);
    } finally {
      await own.close();
    }
  });
}

/** An order whose outcome is unknown: its id. */
async function lost(shop, at, key) {
  const before = shop.react;
  shop.react = s.LOSE;
  assert.equal((await s.order(at, key)).status, 502);
  shop.react = before;
  return shop.ids.at(-1);
}

const code = async (answer) => (await answer.json()).code;
const card = (page, name) => page.locator(`#act-${name}`);

/** Fills in the form of an action, and sends it. */
async function act(page, name, fields, button) {
  await card(page, name).evaluate((card) => (card.open = true));
  for (const [label, text] of Object.entries(fields)) await card(page, name).getByLabel(label).fill(text);
  await card(page, name).getByRole("button", { name: button }).click();
}

// They wait for pages that follow what happens: at once.
describe("the console", { concurrency: 3 }, () => {
it("an order is lost with its gateway, found by its id, and resolved", async (own) => {
  const shop = await s.service(own);
  const config = s.tokens(ROLES);
  const first = await s.gateway(own, shop.url, { config, flags: ["--lease", "1s"] });
  const page = await s.visitor(program);
  await s.signIn(page, first.admin, "ada");

  shop.react = s.HANG;
  const call = s.order(first, "order-4711").catch((error) => error);
  await page.goto(`${first.admin}/records?state=in-flight`);
  const row = page.getByRole("row").filter({ hasText: "POST /v1/orders" });
  await row.getByText("in-flight").waitFor();
  await s.eventually("the upstream has it", () => shop.ids.length);
  await first.kill();
  await call;
  await page.getByText("The gateway does not answer").waitFor();

  // On the same records, at the same place.
  const places = { listen: new URL(first.url).host, admin: new URL(first.admin).host };
  const second = await s.gateway(own, shop.url, { config, flags: ["--lease", "1s"], ...places });
  await page.getByText("Signed out.").waitFor();
  // What a browser says of the time without a gateway is no mistake of the page.
  page.errors = page.errors.filter((error) => !/ERR_(CONNECTION|EMPTY)/.test(error));
  await s.signIn(page, second.admin, "ada");
  shop.react = () => assert.fail("the order ran again");
  const unknown = () => s.order(second, "order-4711").then(code);
  await s.eventually("its lease lapses", async () => (await unknown()) === "outcome-unknown");

  await page.getByRole("link", { name: "Records" }).click();
  await page.getByLabel("Find by id").fill(shop.ids[0]);
  await page.getByRole("button", { name: "Find" }).first().click();
  await page.getByText("It may have had its effect, and nobody recorded it.").first().waitFor();
  await page.getByText("req-7f3a").waitFor();
  await act(page, "resolve-happened", { Status: "201", "Body that retries get": '{"id": 4711}', Reason: "charge ch_81 is in the bank's books" }, "Resolve");
  await page.getByText("Done. It is entry").waitFor();
  await page.getByText("from unknown to completed").waitFor();

  const retry = await s.order(second, "order-4711");
  assert.deepEqual([retry.status, retry.headers.get("idempotency-replayed"), await retry.text()], [201, "true", '{"id": 4711}']);
  await page.getByRole("link", { name: "Audit", exact: true }).click();
  const entry = page.getByRole("row").filter({ hasText: "resolve-happened" });
  for (const text of ["ada", "charge ch_81", "unknown → completed", "done"]) await entry.getByText(text).locator("visible=true").first().waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  assert.deepEqual(page.errors, []);
  assert.deepEqual([...page.hosts], [new URL(second.admin).host]);
  assert.equal(shop.ids.length, 1);
});

it("whoever may only look cannot decide", async (own) => {
  const shop = await s.service(own);
  const at = await s.gateway(own, shop.url, { config: s.tokens(ROLES) });
  const id = await lost(shop, at, "order-1");
  const page = await s.visitor(program);
  await s.signIn(page, at.admin, "reader");
  await page.goto(`${at.admin}/records/${id}`);
  for (const name of ["resolve-happened", "resolve-did-not-happen"]) {
    await card(page, name).evaluate((card) => (card.open = true));
    await card(page, name).getByText("Your token does not have the role operator.").waitFor();
    assert.equal(await card(page, name).locator("form").count(), 0);
  }
  // Nor with a form that they write themselves, with their page's number.
  const sent = await page.evaluate(async (id) => {
    const form = document.querySelector("input[name=form]").value;
    const body = new URLSearchParams({ form, fence: "1", happened: "false", reason: "because" });
    const answer = await fetch(`./${id}/resolve`, { method: "POST", body });
    return [answer.status, await answer.text()];
  }, id);
  assert.equal(sent[0], 403);
  assert.match(sent[1], /does not have the role operator/);
  assert.equal(await s.order(at, "order-1").then(code), "outcome-unknown");
});

it("what needs two is done by two", async (own) => {
  const shop = await s.service(own);
  const at = await s.gateway(own, shop.url, { config: `four-eyes = ["resolve"]\n${s.tokens(ROLES)}` });
  const id = await lost(shop, at, "order-1");
  const [ada, ben] = [await s.visitor(program), await s.visitor(program)];
  await s.signIn(ada, at.admin, "ada");
  await s.signIn(ben, at.admin, "ben");
  const filled = { Status: "200", "Content-Type": "text/plain", "Body that retries get": "paid\ntwice checked", Reason: "it is in the books" };
  await ada.goto(`${at.admin}/records/${id}`);
  await act(ada, "resolve-happened", filled, "Propose");
  await ada.getByText("Nothing is done until somebody else confirms it").waitFor();
  await card(ada, "resolve-happened").getByText("You proposed this").waitFor();
  assert.equal(await card(ada, "resolve-happened").getByRole("button", { name: "Confirm" }).count(), 0);
  assert.equal(await s.order(at, "order-1").then(code), "outcome-unknown");

  await ben.goto(`${at.admin}/records/${id}`);
  await card(ben, "resolve-happened").getByText("ada proposed this").waitFor();
  // Something else than ada proposed: what he wrote stays.
  await act(ben, "resolve-happened", { ...filled, "Body that retries get": "paid" }, "Confirm");
  await ben.getByText("it asks for something else").waitFor();
  assert.equal(await card(ben, "resolve-happened").getByLabel("Body that retries get").inputValue(), "paid");
  await act(ben, "resolve-happened", { ...filled, Reason: "I saw it too" }, "Confirm");
  await ben.getByText("Done. It is entry").waitFor();
  assert.equal(await s.order(at, "order-1").then((answer) => answer.text()), "paid\ntwice checked");
  // The first page is of before.
  await ada.getByText("This record has changed since you opened it.").waitFor();
});

it("another site's page changes nothing", async (own) => {
  for (const config of [s.tokens(ROLES), ""]) {
    const rooms = new s.Rooms();
    try {
      const shop = await s.service(rooms);
      const at = await s.gateway(rooms, shop.url, { config });
      const id = await lost(shop, at, "order-1");
      const page = await s.visitor(program);
      if (config) await s.signIn(page, at.admin, "root");
      await page.goto(`${at.admin}/records/${id}`);
      const number = await page.locator("input[name=form]").first().inputValue();
      const fields = { form: number, fence: 1, happened: "false", reason: "forged", proposal: "" };
      const inputs = Object.entries(fields).map(([name, value]) => `<input name="${name}" value="${value}">`);
      // Even if it knew the number: another site, and another port of the same host.
      const html = `<form method="post" action="${at.admin}/records/${id}/resolve">${inputs.join("")}<button>Win</button></form>`;
      const port = await s.site(rooms, html);
      for (const host of ["localhost", "127.0.0.1"]) {
        await page.goto(`http://${host}:${port}/`);
        const answer = page.waitForResponse((answer) => answer.url().endsWith("/resolve"));
        await page.getByRole("button", { name: "Win" }).click();
        assert.equal((await answer).status(), 403, host);
        await page.getByRole("heading").waitFor();
        assert.ok(!(await page.content()).includes("Done."));
      }
      // Its own page, with another number.
      await page.goto(`${at.admin}/records/${id}`);
      const status = await page.evaluate(async ([id, fields]) => {
        const answer = await fetch(`./${id}/resolve`, { method: "POST", body: new URLSearchParams({ ...fields, form: "0".repeat(32) }) });
        return answer.status;
      }, [id, fields]);
      assert.equal(status, 403);
      assert.equal(await s.order(at, "order-1").then(code), "outcome-unknown");
    } finally {
      await rooms.close();
    }
  }
});

it("a stored answer is hidden until somebody says why", async (own) => {
  const shop = await s.service(own);
  const at = await s.gateway(own, shop.url);
  await s.order(at, "order-1");
  const page = await s.visitor(program);
  await page.goto(`${at.admin}/records/${shop.ids[0]}`);
  await page.getByText("Values are hidden").waitFor();
  assert.ok(!(await page.content()).includes("Lovelace"));
  await act(page, "reveal", { Reason: "the customer asks" }, "Reveal");
  // Numbers stay as they were written.
  await page.getByText('"id": 12345678901234567890').waitFor();
  await page.getByText("r-1").waitFor();
  assert.ok(!page.url().includes("Lovelace"));
  shop.react = s.BYTES;
  await s.order(at, "order-2");
  await page.goto(`${at.admin}/records/${shop.ids[1]}`);
  await act(page, "reveal", { Reason: "what is it" }, "Reveal");
  await page.getByText("000000  00 ff 01 fe 89 50 4e 47").waitFor();
  await page.goto(`${at.admin}/audit`);
  assert.equal(await page.getByRole("row").filter({ hasText: "reveal" }).count(), 2);
  assert.deepEqual(page.errors, []);
});

it("it stands behind a proxy's path, and follows the configuration", async (own) => {
  const shop = await s.service(own);
  const at = await s.gateway(own, shop.url, { config: s.tokens(ROLES) });
  const id = await lost(shop, at, "order-1");
  const root = await s.prefixed(own, "/ops/semel/", at.admin);
  const page = await s.visitor(program);
  // A link to a record survives signing in.
  await page.goto(`${root}records/${id}`);
  await page.getByLabel("Token").fill(s.token("ada"));
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "POST /v1/orders" }).waitFor();
  assert.equal(page.url(), `${root}records/${id}`);
  const [cookie] = await page.context().cookies();
  assert.deepEqual([cookie.path, cookie.httpOnly, cookie.sameSite], ["/ops/semel", true, "Strict"]);
  await act(page, "resolve-did-not-happen", { Reason: "nothing was booked" }, "Release");
  await page.getByText("Done. It is entry").waitFor();
  for (const name of ["Overview", "Records", "Audit", "Retention", "Policy"]) {
    await page.getByRole("link", { name, exact: true }).first().click();
    await page.getByRole("heading", { name, level: 1 }).waitFor();
  }
  assert.ok(page.url().startsWith(root), page.url());
  assert.deepEqual(page.errors, []);
  // The token is taken away: the session ends with it.
  const { writeFileSync } = await import("node:fs");
  writeFileSync(at.file, s.tokens({ root: "admin" }));
  at.reload();
  await page.getByText("Signed out.").waitFor();
  await page.reload();
  await page.getByText("your token is no longer in the configuration").waitFor();
});

it("the first page is light, and is drawn after one more request", async (own) => {
  const shop = await s.service(own);
  const at = await s.gateway(own, shop.url);
  for (let nth = 0; nth < 60; nth++) await s.order(at, `order-${nth}`);
  const page = await s.visitor(program);
  for (const path of ["/", "/records", `/records/${shop.ids[0]}`, "/audit", "/policy", "/retention"]) {
    await page.goto("about:blank");
    const wire = await page.context().newCDPSession(page);
    await wire.send("Network.enable");
    await wire.send("Network.setCacheDisabled", { cacheDisabled: true });
    let bytes = 0;
    wire.on("Network.loadingFinished", ({ encodedDataLength }) => (bytes += encodedDataLength));
    await page.goto(at.admin + path, { waitUntil: "load" });
    const blocking = await page.evaluate(() => performance.getEntriesByType("resource").filter((of) => of.renderBlockingStatus === "blocking").map((of) => of.name));
    await wire.detach();
    console.log(`${path}: ${(bytes / 1024).toFixed(1)} KiB`);
    assert.ok(bytes > 1_000 && bytes < 150_000, `${path}: ${bytes}`);
    assert.deepEqual(blocking.map((name) => name.split("/").at(-1)), ["style.css"]);
  }
  const assets = await page.evaluate(async () => {
    const link = document.querySelector("link[rel=stylesheet]").href;
    const answer = await fetch(link);
    return [answer.headers.get("content-encoding"), answer.headers.get("cache-control")];
  });
  assert.equal(assets[0], "gzip");
  assert.match(assets[1], /immutable/);
});

it("an outage is said once, on pages that stay, too", async (own) => {
  const shop = await s.service(own);
  const store = await s.redis(own);
  const at = await s.gateway(own, shop.url, { store: store.url, config: 'four-eyes = ["erase"]\n' });
  await s.order(at, "order-1");
  const page = await s.visitor(program);
  await page.goto(`${at.admin}/records/${shop.ids[0]}`);
  await store.kill();
  await page.getByText("The store is down").waitFor();
  await page.getByText("What you see is from before.").waitFor();
  // An alert that changes is read out again. What the store says of it may change once.
  const asked = [];
  page.on("response", (answer) => asked.push(answer.url()));
  const changes = await page.evaluate(() => new Promise((then) => {
    let changes = 0;
    new MutationObserver(() => changes++).observe(document.getElementById("trouble"), { childList: true });
    setTimeout(() => then(changes), 18_000);
  }));
  assert.ok(asked.length >= 2 && changes <= 1, `${asked.length} ${changes}`);
  await page.goto(`${at.admin}/retention`);
  await page.getByText("The audit log cannot be read now").waitFor();
});

it("what is marked stays while the list goes on", async (own) => {
  const shop = await s.service(own);
  const at = await s.gateway(own, shop.url);
  await s.order(at, "order-1");
  const page = await s.visitor(program);
  await page.goto(`${at.admin}/records`);
  await page.locator("#list .id").first().evaluate((id) => getSelection().selectAllChildren(id));
  const marked = await page.evaluate(() => getSelection().toString());
  await s.order(at, "order-2");
  for (let nth = 0; nth < 2; nth++) await page.waitForResponse((answer) => answer.url().endsWith("/records"));
  assert.equal(await page.evaluate(() => getSelection().toString()), marked);
  await page.evaluate(() => getSelection().empty());
  await s.eventually("both orders", async () => (await page.locator("#list tbody tr").count()) === 2);
});

it("charts show what happens, and have their figures behind them", async (own) => {
  const shop = await s.service(own);
  const at = await s.gateway(own, shop.url);
  const page = await s.visitor(program);
  await page.goto(`${at.admin}/?range=5m`);
  for (let nth = 0; nth < 20; nth++) await s.order(at, "order-1");
  // It follows by itself.
  await page.locator("#events .tile").filter({ hasText: "Replayed" }).getByText("19", { exact: true }).waitFor();
  await page.locator("#by-route").getByRole("row").filter({ hasText: "default" }).getByText("19", { exact: true }).waitFor();
  assert.equal(await page.locator(".chart canvas").count(), 4);
  const chart = page.locator(".chart").first();
  const { x, y, width } = await chart.locator(".u-over").boundingBox();
  await page.mouse.move(x + width - 3, y + 40);
  await s.eventually("a figure under the pointer", async () => /Replayed\s*[\d.]+/.test(await chart.locator(".u-legend").innerText()));
  await page.getByText("Figures of New and replayed").or(page.getByText("Figures")).first().click();
  const cells = await page.locator("#table-calls tbody tr").last().locator("td").allInnerTexts();
  assert.equal(cells.length, 2);
  // Paused, it stays as it is.
  await page.getByRole("button", { name: "Live" }).click();
  const asked = [];
  page.on("request", (request) => asked.push(request.url()));
  await page.getByRole("link", { name: "Last 5 minutes" }).focus();
  assert.equal(await page.getByRole("button", { name: "Live" }).getAttribute("aria-pressed"), "false");
  assert.deepEqual(page.errors, []);
});
});
