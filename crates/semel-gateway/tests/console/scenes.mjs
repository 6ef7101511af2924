// Every screen in every state, for whoever looks: axe-core, and the camera.
import assert from "node:assert/strict";
import * as s from "./support.mjs";

const ROLES = { reader: "read-only", ada: "operator", root: "admin" };

/** Calls `look` with the name of each scene and a page that shows it, after so many orders and seconds of traffic. */
export async function scenes(rooms, program, look, { many = 20, seconds = 0 } = {}) {
  const shop = await s.service(rooms);
  const store = await s.redis(rooms);
  const config = `four-eyes = ["extend", "erase"]\n${s.tokens(ROLES)}
    [[routes]]
    name = "payments"
    path = "/v1/payments/*"
    service = "payments"
    ttl = "payment"
    require-key = true
    [[routes]]
    name = "pages"
    path = "/pages/*"
    protect = false
    [[routes]]
    name = "orders"`;
  const at = await s.gateway(rooms, shop.url, { config, store: store.url, flags: ["--lease", "2s"] });
  const [page, reader] = [await s.visitor(program), await s.visitor(program)];
  const go = async (name, path, by = page) => {
    await by.goto(at.admin + path);
    await by.waitForLoadState();
    await look(name, by);
  };
  await go("sign-in", "/");
  await page.getByLabel("Token").fill("a token that nobody has");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("This token is not known").waitFor();
  await look("sign-in-refused", page);
  await go("sign-in-unsent", "/sign-in?why=unsent");
  await s.signIn(page, at.admin, "ada");
  await s.signIn(reader, at.admin, "reader");
  await go("overview-empty", "/");
  await go("records-empty", "/records");
  await go("records-calm", "/records?stuck=true");
  await go("audit-empty", "/audit");

  const trace = { traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" };
  await s.order(at, "order-4710", { headers: trace });
  const completed = shop.ids.at(-1);
  for (let nth = 0; nth < 3; nth++) await s.order(at, "order-4710", { headers: trace });
  await s.order(at, "order-4710", { body: '{"sku":"pear"}' });
  const fine = shop.react;
  shop.react = s.BYTES;
  await s.order(at, "picture-1", { path: "/v1/payments/7" });
  const bytes = shop.ids.at(-1);
  shop.react = s.LOSE;
  await s.order(at, "order-4711", { headers: trace });
  const unknown = shop.ids.at(-1);
  await s.order(at, "order-4711", { headers: trace });
  shop.react = (_, response) => response.writeHead(500).end();
  await s.order(at, "order-4712");
  const released = shop.ids.at(-1);
  shop.react = fine;
  for (let nth = 0; nth < many; nth += 40) {
    const some = Array.from({ length: 40 }, (_, at) => at + nth);
    await Promise.all(some.map((nth) => s.order(at, `0f8fad5b-d9cb-469f-a165-${nth}`, { path: nth % 3 ? `/v1/orders/${nth}` : `/v1/payments/${nth}` })));
  }
  // So that charts have something to show.
  const busy = Date.now() + seconds * 1000;
  for (let nth = 0; Date.now() < busy; nth++) {
    const some = 2 + Math.round(2 * Math.sin(nth / 40));
    await Promise.all(Array.from({ length: some }, (_, one) => s.order(at, `busy-${nth >> 1}-${one}`)));
    await new Promise((then) => setTimeout(then, 60));
  }
  shop.react = s.HANG;
  const before = shop.ids.length;
  const hanging = s.order(at, "order-4713", { path: "/v1/payments/4713/capture" }).catch(() => {});
  await s.eventually("one runs", () => shop.ids.length > before);
  const running = shop.ids.at(-1);
  shop.react = fine;

  await go("overview", "/?range=5m");
  await go("records", "/records");
  await go("records-narrowed", "/records?state=completed&service=payments&older=1s");
  await go("records-none", "/records?service=nobody");
  await go("records-refused", "/records?older=soon");
  await go("in-flight", `/records/${running}`);
  await go("completed", `/records/${completed}`);
  await go("released", `/records/${released}`);
  await go("unknown", `/records/${unknown}`);
  await go("unknown-to-a-reader", `/records/${unknown}`, reader);
  await go("no-record", `/records/${"0".repeat(64)}`);
  await page.goto(`${at.admin}/records`);
  const byKey = page.locator(".by-key");
  await byKey.evaluate((details) => (details.open = true));
  await byKey.getByLabel("Key", { exact: true }).fill("order-9999");
  await byKey.getByRole("button", { name: "Find" }).click();
  await page.getByText("No record of this key").waitFor();
  await look("no-record-of-key", page);

  const act = async (name, fields, button) => {
    const card = page.locator(`#act-${name}`);
    await card.evaluate((card) => (card.open = true));
    for (const [label, text] of Object.entries(fields)) await card.getByLabel(label).fill(text);
    await card.getByRole("button", { name: button }).click();
    await page.waitForLoadState();
  };
  await page.goto(`${at.admin}/records/${completed}`);
  await act("reveal", { Reason: "the customer asks" }, "Reveal");
  await page.getByText("Lovelace").waitFor();
  await look("revealed", page);
  await page.goto(`${at.admin}/records/${bytes}`);
  await act("reveal", { Reason: "what is it" }, "Reveal");
  await page.getByText("000000").waitFor();
  await look("revealed-bytes", page);
  await page.goto(`${at.admin}/records/${completed}`);
  await act("extend", { "Replay it for": "soon", Reason: "they need longer" }, "Propose");
  await page.getByText("is not a duration").waitFor();
  await look("refused", page);
  await act("extend", { "Replay it for": "9d", Reason: "they need longer" }, "Propose");
  await page.getByText("Proposed as").waitFor();
  await look("proposed", page);
  const root = await s.visitor(program);
  await s.signIn(root, at.admin, "root");
  await go("to-confirm", `/records/${completed}`, root);
  await page.goto(`${at.admin}/records/${unknown}`);
  await act("resolve-happened", { "Body that retries get": '{"id": 4711}', Reason: "charge ch_81 is in the bank's books" }, "Resolve");
  await page.getByText("Done.").waitFor();
  await look("resolved", page);
  await go("audit", "/audit");
  await go("policy", "/policy");
  await go("retention-to-an-operator", "/retention");
  await root.goto(`${at.admin}/retention`);
  const erase = root.locator("form[action$='retention/erase']").last();
  for (const [label, text] of [["first segment", "nobody"], ["Reason", "Ada Lovelace asked for it"]]) await erase.getByLabel(label).fill(text);
  await erase.getByLabel("I know").check();
  await erase.getByRole("button", { name: "Propose" }).click();
  await root.getByText("Proposed as").waitFor();
  await look("retention", root);
  const number = await page.goto(`${at.admin}/records/${completed}`).then(() => page.locator("input[name=fence]").first().inputValue());
  await page.evaluate(async ([id, fence]) => {
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: `./${id}/erase` });
    for (const [name, value] of Object.entries({ form: document.querySelector("input[name=form]").value, fence, reason: "r" })) {
      form.append(Object.assign(document.createElement("input"), { name, value }));
    }
    document.body.append(form);
    form.submit();
  }, [completed, number]);
  await page.getByText("does not have the role admin").waitFor();
  await look("not-allowed", page);

  await page.goto(`${at.admin}/?range=5m`);
  await store.kill();
  await s.eventually("the store is known to be down", async () => (await fetch(`${at.admin}/readyz`)).status === 503);
  await page.getByText("The store is down").waitFor();
  await go("store-down-overview", "/?range=5m");
  await go("store-down-records", "/records");
  await go("store-down-record", `/records/${completed}`);
  await go("store-down-policy", "/policy");
  await go("store-down-retention", "/retention");
  await page.goto(`${at.admin}/?range=5m`);
  await at.kill();
  await hanging;
  await page.getByText("The gateway does not answer").waitFor();
  await look("gateway-gone", page);
  // They are of what was shown: nothing else went wrong.
  const unexpected = page.errors.filter((error) => !/status of (40|50)\d|ERR_(CONNECTION|EMPTY)/.test(error));
  assert.deepEqual(unexpected, []);
}
