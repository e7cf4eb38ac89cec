// The dashboard in a real browser: every page is looked over, then a person's errands are done with
// mouse and keys. Standard input is one JSON object, see `chromium.rs`; what is wrong is printed, one line each.
import { createRequire } from "node:module";
import { existsSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";

const { modules, link, pages, runs, shots } = JSON.parse(readFileSync(0, "utf8"));
const require = createRequire(join(modules, "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const wrong = [];
let here = "start";
const fail = (/** @type {string} */ text) => wrong.push(`${here}: ${text}`);
const program = process.env.PATH.split(delimiter).map((dir) => join(dir, "chromium")).find(existsSync);
// The sandbox of the browser needs what containers lack; the pages are our own.
const args = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"];
const browser = await chromium.launch({ executablePath: program, args });
const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, reducedMotion: "reduce" });
const page = await context.newPage();
page.setDefaultTimeout(10_000);
const base = new URL(link).origin;
/** Forms that are refused on purpose make the browser report their status. */
let refusals = 0;
page.on("console", (said) => {
  if (said.type() !== "error" && said.type() !== "warning") return;
  if (refusals > 0 && /status of 4\d\d/.test(said.text())) { refusals -= 1; return; }
  fail(`console: ${said.text()}`);
});
page.on("pageerror", (error) => fail(`script: ${error.message}`));
page.on("dialog", (dialog) => { fail(`dialog: ${dialog.message()}`); dialog.dismiss(); });
page.on("request", (request) => { if (new URL(request.url()).origin !== base && !request.url().startsWith("data:image/svg")) fail(`asks for ${request.url()}`); });
page.on("framenavigated", (frame) => {
  if (frame !== page.mainFrame()) fail(`a frame at ${frame.url()}`);
  else if (new URL(frame.url()).origin !== base) fail(`went to ${frame.url()}`);
});
context.on("page", (other) => fail(`opened ${other.url()}`));

const expect = async (/** @type {string} */ what, /** @type {Promise<unknown>} */ done) => {
  try { await done; } catch (error) {
    const shown = (await page.locator("main").innerText()).replace(/\s+/g, " ").slice(0, 600);
    fail(`${what}: ${String(error.message).split("\n")[0]} at ${page.url()}: ${shown}`);
  }
};
const seen = (/** @type {string} */ selector, text) => page.locator(selector, text ? { hasText: text } : {}).first().waitFor();
const gone = (/** @type {string} */ selector) => page.locator(selector).first().waitFor({ state: "detached" });
const card = (/** @type {string} */ id) => `[data-card]:has(a[href="/runs/${id}"])`;

/** Moves to a card with `j`, as a person does. @param {string} id */
async function choose(id) {
  await page.evaluate(() => document.activeElement?.blur());
  for (let n = 0; n < 40; n++) {
    await page.keyboard.press("j");
    if (await page.evaluate((want) => document.activeElement?.matches(want), card(id))) return;
  }
  fail(`no card of ${id} is reached with j`);
}

/** Looks the page over. @param {string} name @param {string[] | null} rules */
async function audit(name, look, rules) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) fail(`${look}: ${wide} px wider than the screen`);
  const options = rules ? { runOnly: { type: "rule", values: rules } } : {};
  const found = await page.evaluate(async (options) => {
    const { violations } = await globalThis.axe.run(document, options);
    return violations.map((one) => `${one.id}: ${one.nodes.slice(0, 2).map((node) => `${node.target.join(" ")} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
  }, options);
  for (const one of found) fail(`${look}: axe ${one}`);
  if (shots) await page.screenshot({ path: join(shots, `${name}-${look}.png`), fullPage: look === "phone" });
}

/** What goes wrong is told together with all that was wrong before. */
process.on("uncaughtException", (error) => { console.log([...wrong, `${here}: ${error.message}`].join("\n")); process.exit(); });
const began = Date.now();
const lap = () => console.error(`${here} at ${Date.now() - began} ms`);

here = "sign in";
await page.goto(link);
await page.getByRole("button", { name: "Sign in as admin" }).click();
await expect("Now is shown", seen("h1", "Now"));

here = "first paint";
const paints = [];
for (let n = 0; n < 5; n++) {
  await page.goto(base + "/");
  await expect("it is painted", page.waitForFunction(() => performance.getEntriesByName("first-paint").length));
  paints.push(await page.evaluate(() => Math.round(performance.getEntriesByType("paint").find((one) => one.name === "first-paint")?.startTime ?? -1)));
}
console.error(`first paint of Now: ${paints.join(", ")} ms`);

const looks = [
  ["light", "light", 1360, null],
  ["dark", "dark", 1360, ["color-contrast", "link-in-text-block"]],
  ["phone", "light", 360, ["color-contrast", "target-size", "scrollable-region-focusable", "meta-viewport"]],
];
for (const [name, path] of Object.entries(pages)) {
  here = name;
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1360, height: 860 });
  const answer = await page.goto(base + path);
  if (answer.status() !== 200) fail(`answered with ${answer.status()}`);
  await page.evaluate(axe);
  for (const [look, colorScheme, width, rules] of looks) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: look === "phone" ? 740 : 860 });
    await audit(name, look, rules);
  }
  if (page.url() !== base + path) fail(`is at ${page.url()}`);
  if (await page.evaluate(() => document.querySelectorAll("iframe, object, embed, base, meta[http-equiv], img, main script").length)) fail("holds markup of somebody else");
  if (/^(\(\d+\) )?owned/.test(await page.title())) fail("has another title");
}
await page.setViewportSize({ width: 1360, height: 860 });
await page.emulateMedia({ colorScheme: "light" });

if (!runs) {
  await browser.close();
  console.log(wrong.join("\n"));
  process.exit();
}

lap();
here = "count what waits";
await page.goto(`${base}/agents`);
await expect("the title counts", page.waitForFunction(() => /^\(\d+\) Agents/.test(document.title)));
await expect("the icon counts", page.waitForFunction(() => document.querySelector("link[rel=icon]").href.startsWith("data:image/svg")));

here = "start a run";
await page.goto(base + "/");
await page.getByRole("link", { name: "Start a run" }).click();
await page.locator("[name=agent]").selectOption({ label: "sh" });
await page.locator("[name=task]").fill("shell: head -n 1 go");
await page.locator("[name=workspace]").fill(runs.work);
await page.locator("[name=name]").fill("from-the-page");
await page.getByRole("button", { name: "Start" }).click();
await expect("its page", seen("h1", "from-the-page"));
await page.getByRole("link", { name: "Now" }).click();
await expect("it works", seen("#working .item", "from-the-page"));
await page.evaluate(() => { globalThis.sameDocument = true; });
writeFileSync(openSync(join(runs.work, "go"), "r+"), "it is done\n");
await expect("it ends in Done", seen("#done .item", "from-the-page"));
if (!(await page.evaluate(() => globalThis.sameDocument))) fail("the page was loaded anew");

here = "approve with y";
await choose(runs.hook);
await page.keyboard.press("y");
await expect("the card is gone", gone(`#needs ${card(runs.hook)}`));

here = "deny with a reason";
await choose(runs.push);
await page.keyboard.press("n");
await page.keyboard.type("not this host");
await page.keyboard.press("Enter");
await expect("the card is gone", gone(`#needs ${card(runs.push)}`));

here = "answer a question";
await choose(runs.asks);
await page.keyboard.press("e");
await page.keyboard.type("docs/http.md");
await page.locator(card(runs.asks)).getByRole("button", { name: "Answer" }).click();
await expect("the card is gone", gone(`#needs ${card(runs.asks)}`));

here = "send to a run at rest";
await page.goto(`${base}/runs/${runs.rests}`);
await page.getByLabel("Say more to", { exact: false }).fill("and once more");
await page.getByRole("button", { name: "Send", exact: true }).click();
await expect("it goes on", seen("#tl", "and once more"));
await expect("it answers", seen("#tl", "The second answer."));

here = "a terminal";
await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: base });
await page.evaluate(() => navigator.clipboard.writeText("mine"));
await page.goto(`${base}/runs/${runs.terminal}`);
await page.getByRole("link", { name: "Terminal" }).click();
const rows = page.locator(".xterm-rows");
const shows = (/** @type {import("playwright-core").Page} */ who, /** @type {string} */ text) =>
  who.locator(".xterm-rows", { hasText: text }).waitFor();
await expect("the program's screen", shows(page, "ready"));
await expect("it is watched", seen("#term-mode", "watching"));
await page.locator(".xterm").click();
await page.keyboard.type("nobody\n");
await page.getByRole("button", { name: "Take over" }).click();
await expect("it was taken over", seen("#term-mode", "you type"));
await page.keyboard.type("hello there\n");
await expect("the echo", shows(page, "heard <hello there>"));
const wide = await page.locator("#term").evaluate((element) => element.clientWidth);
const columns = Number(/columns: (\d+)/.exec((await rows.innerText()).replace(/\s+/g, " "))?.[1]);
if (!(columns > wide / 12 && columns < wide / 5)) fail(`the terminal has ${columns} columns on ${wide} px`);
await rows.getByText("a link", { exact: true }).click({ force: true });

here = "a second viewer";
const second = await context.browser().newContext({ storageState: await context.storageState() });
const other = await second.newPage();
other.setDefaultTimeout(10_000);
other.on("pageerror", (error) => fail(`script: ${error.message}`));
/** @type {import("playwright-core").WebSocketRoute[]} */
const sockets = [];
await other.routeWebSocket(/terminal\/socket/, (socket) => { socket.connectToServer(); sockets.push(socket); });
await other.goto(`${base}/runs/${runs.terminal}/terminal`);
await expect("it sees the same", shows(other, "heard <hello there>"));
await page.locator(".xterm").click();
await page.keyboard.type("for both\n");
await expect("it follows", shows(other, "heard <for both>"));

here = "a terminal whose connection breaks";
await sockets[0].close({ code: 1012 });
await expect("it connects again and says so", other.locator("#term-say", { hasText: "Connected again, was away" }).waitFor());
await expect("it shows the screen as it is", shows(other, "heard <for both>"));

here = "give back";
await page.locator(".xterm").click();
await page.keyboard.press("Control+Shift+Enter");
await expect("it is watched again", seen("#term-mode", "watching"));
await page.keyboard.type("nobody\n");
await other.getByRole("button", { name: "Take over" }).click();
await expect("the second types", other.locator("#term-mode", { hasText: "you type" }).waitFor());
await other.keyboard.type("from the second\n");
await expect("the first sees it", shows(page, "heard <from the second>"));
if (/nobody/.test(await rows.innerText())) fail("what was pressed while watching reached the program");
if (/owned/.test((await page.title()) + (await other.title()))) fail("the program has set the title");
if ((await page.evaluate(() => navigator.clipboard.readText())) !== "mine") fail("the program has set the clipboard");
await second.close();

here = "merge";
await page.goto(`${base}/runs/${runs.fix}/changes`);
await page.getByRole("button", { name: "Merge" }).click();
await expect("it is decided", seen(".notice.good", "by admin"));

here = "edit a resource";
await page.goto(`${base}/resources/ritual/daily`);
await page.locator("details.edit > summary").click();
const editor = page.getByLabel("Document in YAML");
const before = await editor.inputValue();
await editor.fill(before.replace("0 9 * * 1-5", "99 9 * * 1-5"));
refusals = 1;
await page.getByRole("button", { name: "Check" }).click();
await expect("the mistake", seen("[role=alert]", "spec.schedule"));
if (!(await editor.inputValue()).includes("99 9 * * 1-5")) fail("what was typed is lost");
await editor.fill(before.replace("0 9 * * 1-5", "0 10 * * 1-5"));
await page.getByRole("button", { name: "Apply" }).click();
await expect("it is applied", seen("pre", "0 10 * * 1-5"));

here = "pause a ritual";
await page.getByRole("button", { name: "Pause" }).click();
await expect("it is paused", seen(".pill", "paused"));

here = "explain a command";
await page.goto(`${base}/settings/policy`);
await page.locator("[name=command]").fill("sudo rm -rf src");
await page.locator("[name=agent]").selectOption("sh");
await page.getByRole("button", { name: "Explain" }).click();
await expect("the verdict", seen("[role=status] .pill", "denied"));
await expect("the program", seen(".action code", "sudo → rm -rf src"));
await page.evaluate(axe);
await audit("explained", "light", null);

here = "make a key and revoke it";
await page.goto(`${base}/settings/keys`);
await page.locator("[name=name]").fill("newcomer");
await page.getByRole("button", { name: "Make the key" }).click();
await expect("its secret", seen(".once pre", "ovk_"));
const revoke = page.locator("tr", { hasText: "newcomer" });
await revoke.locator("summary").click();
await revoke.getByRole("button", { name: "Revoke it at once" }).click();
await expect("it is revoked", seen(".notice.good", "The key is revoked"));
if (await page.locator("tr", { hasText: "newcomer" }).count()) fail("the key is still listed");

here = "sign out";
await page.getByRole("button", { name: "Sign out", exact: true }).click();
await expect("the way in", seen("h1", "Sign in"));
refusals = 1;
const out = await page.goto(base + "/");
if (out.status() !== 401) fail(`answered with ${out.status()}`);

lap();
await browser.close();
console.log(wrong.join("\n"));
