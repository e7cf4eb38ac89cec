// What a browser with scripts adds to the pages: live parts, keys, the title's counter. Every page
// reads and every form works without it.
// @ts-check

const run = document.body.dataset.run;
const say = document.getElementById("live");
/** The server's text of each live part, as it was last shown. @type {WeakMap<Element, string>} */
const shown = new WeakMap();

for (const part of document.querySelectorAll("[data-live]")) {
  for (const child of part.children) shown.set(child, child.outerHTML);
}
for (const log of document.querySelectorAll("[data-end] > *")) log.scrollTop = log.scrollHeight;

/** Somebody is typing in it, or has. @param {Element} element */
function inUse(element) {
  const fields = element.querySelectorAll("input:not([type=hidden]), textarea");
  const typed = [...fields].some((field) => /** @type {HTMLInputElement} */ (field).value !== /** @type {HTMLInputElement} */ (field).defaultValue);
  const focused = element.contains(document.activeElement) && document.activeElement?.matches("input, textarea");
  return typed || Boolean(focused);
}

/** Brings one live part to what the server says, child by child. @param {Element} old @param {Element} fresh */
function patch(old, fresh) {
  // A part of text alone, or of children without names, is shown as it comes.
  if (!fresh.children.length || ![...fresh.children].every((child) => child.id)) {
    if (old.innerHTML !== fresh.innerHTML) old.innerHTML = fresh.innerHTML;
    return;
  }
  const known = new Map([...old.children].map((child) => [child.id, child]));
  let place = old.firstElementChild;
  for (const child of [...fresh.children]) {
    const text = child.outerHTML;
    let here = known.get(child.id);
    known.delete(child.id);
    if (here && shown.get(here) !== text && !inUse(here)) {
      const focus = here.contains(document.activeElement) ? document.activeElement : null;
      const at = focus === here ? "" : focus?.id;
      const end = here.scrollTop + here.clientHeight >= here.scrollHeight - 8;
      const opened = [...here.querySelectorAll("details")].map((one) => one.open);
      const next = document.importNode(child, true);
      if (here === place) place = next;
      here.replaceWith(next);
      here = next;
      shown.set(here, text);
      here.querySelectorAll("details").forEach((one, n) => { if (opened[n]) one.open = true; });
      if (end && old.hasAttribute("data-end")) here.scrollTop = here.scrollHeight;
      if (focus) (at ? document.getElementById(at) : /** @type {HTMLElement} */ (here))?.focus();
    } else if (!here) {
      here = document.importNode(child, true);
      shown.set(here, text);
    }
    if (here === place) place = place?.nextElementSibling ?? null;
    else old.insertBefore(here, place);
  }
  for (const gone of known.values()) {
    const had = gone.contains(document.activeElement);
    const next = /** @type {HTMLElement | null} */ (gone.nextElementSibling ?? gone.previousElementSibling);
    gone.remove();
    if (had) next?.focus();
  }
}

let busy = false;
let again = false;
/** Reads the page anew and shows what changed. One at a time; what comes meanwhile is read once more. */
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.status === 401) { location.reload(); return; }
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(part.id);
      if (next) patch(part, next);
    }
    document.title = fresh.title;
    document.dispatchEvent(new Event("overmind:shown"));
  } catch {
    // The stream says that the server is away.
  } finally {
    busy = false;
    if (again) { again = false; soon(); }
  }
}

let timer = 0;
/** At most eight times a second; the first change is shown at once. */
let last = 0;
function soon() {
  if (timer) return;
  const wait = Math.max(0, last + 125 - Date.now());
  timer = setTimeout(() => { timer = 0; last = Date.now(); refresh(); }, wait);
}

/** @param {string} text @param {boolean} off */
function tell(text, off) {
  if (!say) return;
  say.textContent = text;
  say.classList.toggle("off", off);
}

let blind = 0;
if (say && !new URLSearchParams(location.search).has("before") && !new URLSearchParams(location.search).has("cursor")) {
  const stream = new EventSource("/live");
  stream.onopen = () => {
    const away = blind ? Math.round((Date.now() - blind) / 1000) : 0;
    tell(blind ? `live again, was away ${away} s` : "live", false);
    blind = 0;
    // What happened between the page and the stream.
    soon();
  };
  stream.onerror = () => {
    blind ||= Date.now();
    tell("reconnecting", true);
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
  stream.onmessage = (event) => {
    if (run && JSON.parse(event.data).run_id !== run) return;
    soon();
  };
  if (run && document.getElementById("log")) follow();
  // Relative times grow old.
  setInterval(() => { if (!document.hidden) soon(); }, 30000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
}

/** Follows what the command writes: each piece says that there is more to read. */
async function follow() {
  try {
    const answer = await fetch(`/runs/${run}/output`);
    const reader = answer.ok && answer.body ? answer.body.getReader() : null;
    while (reader && !(await reader.read()).done) soon();
  } catch {
    // The page is read again when the event stream is back.
  }
}

const cards = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-card]")]);
const chosen = () => /** @type {HTMLElement | null} */ (document.activeElement?.closest("[data-card]") ?? null);

/** @param {number} by */
function move(by) {
  const all = cards();
  const at = all.findIndex((card) => card === chosen());
  all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

let going = false;
document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // What is pressed in a terminal is the program's.
  if (target.closest(".xterm")) return;
  if (target.matches("input, textarea, select")) {
    if (event.key === "Escape") (chosen() ?? target).focus(), target.blur();
    return;
  }
  if (going) {
    going = false;
    const link = /** @type {HTMLElement | null} */ (document.querySelector(`nav [data-go="${CSS.escape(event.key)}"]`));
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  /** Of the chosen card, else of the only one. @param {string} what */
  const part = (what) => {
    const within = chosen();
    if (within) return /** @type {HTMLElement | null} */ (within.querySelector(what));
    const all = document.querySelectorAll(what);
    return all.length === 1 ? /** @type {HTMLElement} */ (all[0]) : null;
  };
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    y: () => part("[data-yes]")?.click(),
    n: () => {
      const box = /** @type {HTMLDetailsElement | null} */ (part("[data-no]"));
      if (box) { box.open = true; /** @type {HTMLElement | null} */ (box.querySelector("[name=reason]"))?.focus(); }
    },
    e: () => part("[data-edit]")?.focus(),
    g: () => { going = true; },
    "/": () => /** @type {HTMLElement | null} */ (document.querySelector("[data-filter]"))?.focus(),
    "?": () => /** @type {HTMLDialogElement | null} */ (document.getElementById("keys"))?.showModal(),
    Enter: () => target.matches("[data-card]") && /** @type {HTMLElement | null} */ (target.querySelector("[data-open]"))?.click(),
  };
  const does = keys[/** @type {keyof typeof keys} */ (event.key)];
  if (!does || (event.key === "Enter" && !target.matches("[data-card]"))) return;
  event.preventDefault();
  does();
});
