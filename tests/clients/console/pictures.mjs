// Takes the pictures of the docs: `node pictures.mjs ../../../docs/console`.
import { PAGES, Team } from "./team.mjs";

const PICTURES = [
  ["needs", "wide", "light"],
  ["needs", "phone", "dark"],
  ["leases", "wide", "light"],
  ["facts", "phone", "light"],
  ["cluster", "wide", "dark"],
];

const folder = process.argv[2];
if (!folder) throw new Error("name the folder for the pictures");
// All of them, to look at: not all are kept.
const wanted = process.argv[3] === "all" ? Object.keys(PAGES).flatMap((name) => [[name, "wide", "light"], [name, "phone", "dark"]]) : PICTURES;
const team = await Team.start();
try {
  for (const [name, size, scheme] of wanted) {
    const page = await team.open(size, { scheme });
    await page.goto(team.address(PAGES[name][0]));
    await page.waitForLoadState("load");
    await page.screenshot({ path: `${folder}/${name}-${size}.png` });
    await team.close(page);
  }
} finally {
  await team.stop();
}
