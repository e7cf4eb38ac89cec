// The terminal of a run: watched by default, taken over on purpose, given back. Bytes of the program
// reach xterm.js alone: no sequence changes the page's title, the clipboard, or opens a link.
// @ts-check

const version = new URL(import.meta.url).search;
const { Terminal } = await import(`./xterm.mjs${version}`);
const { FitAddon } = await import(`./xterm-fit.mjs${version}`);

const part = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const place = part("terminal");
const screen = part("term");
const say = part("term-say");
const pill = part("term-mode");
const take = document.getElementById("term-take");
const give = document.getElementById("term-give");

// The policy of the pages allows no style elements and no style attributes. xterm.js makes both, so
// here the first become constructed style sheets, and the second are set as properties.
const create = document.createElement.bind(document);
document.createElement = (/** @type {string} */ name, /** @type {any} */ options) => {
  if (name !== "style") {
    const element = create(name, options);
    const set = element.setAttribute.bind(element);
    element.setAttribute = (key, value) => { if (key === "style") element.style.cssText = value; else set(key, value); };
    return element;
  }
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  const stand = create("span");
  stand.hidden = true;
  let text = "";
  Object.defineProperty(stand, "textContent", { get: () => text, set: (value) => { text = String(value); sheet.replaceSync(text); } });
  return stand;
};

const terminal = new Terminal({
  fontFamily: getComputedStyle(document.querySelector("code, pre") ?? document.body).fontFamily,
  fontSize: 13, cursorBlink: false, disableStdin: true, scrollback: 5000, minimumContrastRatio: 4.5,
  theme: { background: "#111214", foreground: "#e8e8e6", cursor: "#8aa2ff", selectionBackground: "#3b5bdb99" },
  linkHandler: { activate: () => {}, allowNonHttpProtocols: false },
});
const fit = new FitAddon();
terminal.loadAddon(fit);
// Titles, working directories, links, colours of the page, notes, the clipboard, shell marks: none
// of them is for this machine. Nor are orders to the window, or reports of it.
for (const code of [0, 1, 2, 7, 8, 9, 52, 99, 133, 633, 777, 1337]) terminal.parser.registerOscHandler(code, () => true);
terminal.parser.registerCsiHandler({ final: "t" }, () => true);
screen.hidden = false;
terminal.open(screen);
/** @type {HTMLDetailsElement} */ (part("term-words")).open = false;

let mode = "read";
/** @type {WebSocket | null} */
let socket = null;
let blind = 0;
/** Attempts to connect since the last one that succeeded. */
let tries = 0;
let timer = 0;
const encoder = new TextEncoder();

/** @param {string} text @param {boolean} [off] */
function tell(text, off = false) {
  say.textContent = text;
  say.classList.toggle("off-line", off);
}

function shown() {
  const writes = mode === "write";
  const open = socket?.readyState === WebSocket.OPEN;
  pill.hidden = !open;
  pill.className = `pill ${writes ? "ask" : "run"}`;
  pill.textContent = writes ? "✎ you type" : "◉ watching";
  place.classList.toggle("writes", writes);
  if (take) take.hidden = writes || !open;
  if (give) give.hidden = !writes;
  terminal.options.disableStdin = !writes || !open;
}

/** @param {unknown} word */
const send = (word) => { if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(word)); };

function connect() {
  clearTimeout(timer);
  const target = new URL(`${place.dataset.liveTerminal}?mode=${mode}`, location.href);
  if (mode === "write") {
    const size = fit.proposeDimensions();
    if (size) target.search += `&columns=${Math.min(size.cols, 1000)}&rows=${Math.min(size.rows, 1000)}`;
  }
  target.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const mine = new WebSocket(target, "overmind.attach.v1");
  mine.binaryType = "arraybuffer";
  socket = mine;
  /** Why the server closes it, if it said so. */
  let why = "";
  let clear = false;
  mine.onmessage = (event) => {
    if (mine !== socket) return;
    if (typeof event.data !== "string") {
      if (clear) terminal.write("\x1bc");
      clear = false;
      terminal.write(new Uint8Array(event.data));
      return;
    }
    const said = JSON.parse(event.data);
    if (said.began) {
      const away = blind ? Math.round((Date.now() - blind) / 1000) : 0;
      const now = mode === "write" ? "You type. Others see it." : place.hasAttribute("data-may-type") ? "You watch. Nothing that you press reaches the program." : "You watch.";
      tell(blind ? `Connected again, was away ${away} s. ${now}` : now);
      blind = 0;
      tries = 0;
      shown();
      if (mode === "write") { sized(); terminal.focus(); }
    } else if (said.screen) {
      clear = true;
      if (mode === "read") terminal.resize(said.screen.size.columns, said.screen.size.rows);
    } else if (said.refused) {
      tell(`Not taken: ${said.refused.message}`, true);
    } else if (said.ended) {
      why = said.ended.exit_code === null ? `The program has ended${said.ended.signal ? ` by signal ${said.ended.signal}` : ""}.` : `The program has ended with exit code ${said.ended.exit_code}.`;
    } else if (said.away) {
      why = said.away.reason;
    }
  };
  mine.onclose = (event) => {
    if (mine !== socket) return;
    blind ||= Date.now();
    shown();
    if (event.code === 1008) { location.reload(); return; }
    again(why);
  };
}

/** Looks whether there is still something to attach to, and tries again if so. @param {string} why */
async function again(why) {
  tries += 1;
  tell(why ? `${why} Reconnecting.` : "Reconnecting.", true);
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.status === 401) { location.reload(); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("terminal");
    const active = page.querySelector("#f-stop, #head .pill.run, #head .pill.ask");
    if (fresh && !fresh.dataset.liveTerminal) {
      const hint = page.getElementById("term-say")?.textContent ?? "";
      const text = page.getElementById("term-text")?.textContent;
      if (text) part("term-text").textContent = text;
      // It ended for good: what it drew last stays on the screen.
      if (!active) { mode = "read"; blind = 0; tell(why || hint); shown(); return; }
      tell(`${why} ${hint}`.trim(), true);
    } else if (tries > 3) {
      tell("The server does not let this page attach now: as many may watch as may be, or there is no terminal. Trying again.", true);
    }
  } catch {
    tell("The server is away. Reconnecting.", true);
  }
  timer = setTimeout(connect, Math.min(5000, 250 * 2 ** Math.min(tries, 5)));
}

/** @param {string} next */
function change(next) {
  mode = next;
  const before = socket;
  socket = null;
  before?.close();
  connect();
  shown();
}

function sized() {
  if (mode !== "write") return;
  fit.fit();
  send({ resize: { columns: Math.min(terminal.cols, 1000), rows: Math.min(terminal.rows, 1000) } });
}

let wait = 0;
new ResizeObserver(() => { clearTimeout(wait); wait = setTimeout(sized, 100); }).observe(screen);
const pieces = (/** @type {Uint8Array<ArrayBuffer>} */ bytes) => {
  if (mode !== "write" || socket?.readyState !== WebSocket.OPEN) return;
  for (let at = 0; at < bytes.length; at += 32768) socket.send(bytes.slice(at, at + 32768));
};
terminal.onData((/** @type {string} */ text) => pieces(encoder.encode(text)));
terminal.onBinary((/** @type {string} */ text) => pieces(Uint8Array.from(text, (one) => one.charCodeAt(0))));
terminal.attachCustomKeyEventHandler((/** @type {KeyboardEvent} */ event) => {
  if (!(event.ctrlKey && event.shiftKey && event.key === "Enter")) return true;
  event.preventDefault();
  if (event.type === "keydown" && mode === "write") change("read"), take?.focus();
  return false;
});
take?.addEventListener("click", () => change("write"));
give?.addEventListener("click", () => { change("read"); take?.focus(); });
connect();
