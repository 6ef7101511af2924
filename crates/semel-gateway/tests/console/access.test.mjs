// For everybody: what axe-core finds on every screen and state, and each action by the keyboard alone.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { scenes } from "./scenes.mjs";
import * as s from "./support.mjs";

// With SEMEL_LOOKS=all each of both.
const LOOKS = [["light", 1280], ["dark", 360], ...(process.env.SEMEL_LOOKS === "all" ? [["light", 360], ["dark", 1280], ["light", 1920]] : [])];
const rooms = new s.Rooms();
let program;
before(async () => {
  program = await s.browser(rooms);
});
after(() => rooms.close());

test("axe-core finds nothing on any screen and state", { timeout: 10 * s.PATIENCE }, async () => {
  let looked = 0;
  await scenes(rooms, program, async (name, page) => {
    for (const [colorScheme, width] of LOOKS) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      const found = await page.evaluate(async (axe) => {
        if (!window.axe) (0, eval)(axe);
        document.querySelectorAll("details").forEach((details) => (details.open = true));
        const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
        const isWide = document.documentElement.scrollWidth > innerWidth;
        return [...(isWide ? [`wider than ${innerWidth}`] : []), ...violations.map((of) => `${of.id}: ${of.nodes.map((node) => node.html).join("; ")}`)];
      }, s.AXE);
      assert.deepEqual(found, [], `${name}, ${colorScheme}, ${width} px`);
      looked += 1;
    }
  });
  console.log(`${looked} pages looked at`);
});

/** Goes to what has this name by the Tab key, from where the focus is. */
async function tab(page, role, name, within = "") {
  for (let nth = 0; nth < 200; nth++) {
    await page.keyboard.press("Tab");
    const found = await page.evaluate(([within]) => {
      const here = document.activeElement;
      if (within && !here.closest(within)) return null;
      const text = here.labels?.[0]?.firstChild?.textContent ?? here.textContent;
      return [here.tagName.toLowerCase(), text.trim()];
    }, [within]);
    if (found && found[0] === role && found[1].startsWith(name)) return;
  }
  assert.fail(`Tab does not reach ${role} ${name}`);
}

test("each action is done by the keyboard alone", { timeout: 5 * s.PATIENCE }, async () => {
  const own = new s.Rooms();
  try {
    const shop = await s.service(own);
    const at = await s.gateway(own, shop.url, { config: s.tokens({ root: "admin" }) });
    for (const key of ["order-1", "order-2"]) {
      shop.react = s.LOSE;
      await s.order(at, key);
    }
    const page = await s.visitor(program);
    const press = (...keys) => keys.reduce((done, key) => done.then(() => page.keyboard.press(key)), Promise.resolve());
    await page.goto(at.admin);
    // The field for the token has the focus, a moment after the page is there.
    await page.locator("input[name=token]:focus").waitFor();
    await page.keyboard.type(s.token("root"));
    await press("Enter");
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await tab(page, "a", "Skip to the content");
    await tab(page, "a", "Records");
    await press("Enter");
    await page.getByRole("heading", { name: "Records" }).waitFor();
    await tab(page, "input", "Find by id");
    await page.keyboard.type(shop.ids[0]);
    await press("Enter");
    const act = async (card, title, button, fields) => {
      await page.locator(`#act-${card}`).waitFor();
      const within = `#act-${card}`;
      await tab(page, "summary", title, within);
      await press("Enter");
      for (const [role, name, text] of fields) {
        await tab(page, role, name, within);
        await (text === " " ? press("Space") : page.keyboard.type(text));
      }
      await tab(page, "button", button, within);
      await press("Enter");
    };
    const done = async () => page.getByText("Done. It is entry").waitFor();
    const why = ["textarea", "Reason", "as said"];
    await act("resolve-happened", "It happened", "Resolve", [["textarea", "Body that retries get", '"paid"'], why]);
    await done();
    await act("extend", "Extend", "Extend", [["input", "Replay it for", "9d"], why]);
    await done();
    await act("reveal", "Reveal", "Reveal", [why]);
    await page.getByRole("region", { name: "The body", exact: true }).getByText("paid").waitFor();
    await act("erase", "Erase", "Erase", [why, ["input", "", " "]]);
    await done();
    await page.getByText("omitted").waitFor();

    await tab(page, "a", "Records");
    await press("Enter");
    await page.getByRole("heading", { name: "Records" }).waitFor();
    await tab(page, "summary", "Find by key");
    await press("Enter");
    await tab(page, "input", "Key");
    await page.keyboard.type("order-2");
    await press("Enter");
    await act("resolve-did-not-happen", "It did not happen", "Release", [why]);
    await done();
    await tab(page, "a", "Retention");
    await press("Enter");
    await page.getByRole("heading", { name: "Retention" }).waitFor();
    for (const [action, button, fields] of [["erase", "Erase the scope", [["input", "Scope, first", "nobody"], why]], ["purge", "Purge", [why]]]) {
      const [within, before] = [`form[action$="${action}"]`, page.url()];
      for (const [role, name, text] of [...fields, ["input", "", " "]]) {
        await tab(page, role, name, within);
        await (text === " " ? press("Space") : page.keyboard.type(text));
      }
      await tab(page, "button", button, within);
      await press("Enter");
      await page.waitForURL((url) => url.href !== before);
      await done();
    }
    await tab(page, "a", "Overview");
    await press("Enter");
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await tab(page, "button", "Live");
    await press("Space");
    assert.equal(await page.getByRole("button", { name: "Live" }).getAttribute("aria-pressed"), "false");
    await tab(page, "a", "Last 6 hours");
    await press("Enter");
    await page.getByRole("heading", { name: "This gateway, last 6 hours" }).waitFor();
    await tab(page, "summary", "Figures");
    await press("Enter");
    await tab(page, "button", "Sign out");
    await press("Enter");
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    assert.deepEqual(page.errors, []);
  } finally {
    await own.close();
  }
});
