// Pictures of every scene: wide, narrow and dark. `test --screenshots FOLDER`; and a few for docs/, compressed.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { scenes } from "./scenes.mjs";
import * as s from "./support.mjs";

const [folder, docs] = process.argv.slice(2);
const SHAPES = { wide: [1440, "light"], narrow: [360, "light"], dark: [1440, "dark"], broad: [1920, "light"] };
const DOCS = { "overview-wide": "overview", "unknown-wide": "record", "overview-dark": "dark" };

/** A picture as WebP, made by the browser. */
async function webp(program, png) {
  const page = await program.newPage();
  const coded = await page.evaluate(async (png) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height);
    canvas.getContext("2d").drawImage(image, 0, 0);
    const bytes = new Uint8Array(await (await canvas.convertToBlob({ type: "image/webp", quality: 0.8 })).arrayBuffer());
    return btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), ""));
  }, png.toString("base64"));
  await page.close();
  return Buffer.from(coded, "base64");
}

mkdirSync(folder, { recursive: true });
const rooms = new s.Rooms();
try {
  const program = await s.browser(rooms);
  await scenes(rooms, program, async (name, page) => {
    for (const [shape, [width, colorScheme]] of Object.entries(SHAPES)) {
      const as = DOCS[`${name}-${shape}`];
      if (docs && !as) continue;
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width: docs ? 1200 : width, height: docs ? 800 : 900 });
      await page.mouse.move(0, 0);
      const png = await page.screenshot({ fullPage: !docs });
      if (docs) writeFileSync(join(folder, `console-${as}.webp`), await webp(program, png));
      else writeFileSync(join(folder, `${name}-${shape}.png`), png);
    }
  }, { many: Number(process.env.SEMEL_RECORDS ?? 400), seconds: 120 });
} finally {
  await rooms.close();
}
console.log(`in ${folder}`);
