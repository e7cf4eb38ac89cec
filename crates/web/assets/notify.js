// Counts what needs somebody: in the title, in the icon of the tab and, if the person agrees, on the
// desktop while no page of ours is looked at.
// @ts-check

const icon = /** @type {HTMLLinkElement | null} */ (document.querySelector('link[rel="icon"]'));
const plain = icon?.getAttribute("href") ?? "";
const button = document.getElementById("notify");
/** What was waiting when it was last counted; `null` before the first time. @type {Set<string> | null} */
let known = null;
let waiting = 0;

function show() {
  const title = document.title.replace(/^\(\d+\) /, "");
  document.title = waiting ? `(${waiting}) ${title}` : title;
  if (!icon) return;
  const text = waiting > 9 ? "9+" : String(waiting);
  const drawn = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#3b5bdb"/><text x="16" y="23" text-anchor="middle" font-family="sans-serif" font-size="20" font-weight="700" fill="#fff">${text}</text></svg>`;
  const wanted = waiting ? `data:image/svg+xml,${encodeURIComponent(drawn)}` : plain;
  if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
}

/** @param {{ id: string, title: string }[]} items */
function tell(items) {
  if (!known || !document.hidden || !("Notification" in window) || Notification.permission !== "granted") return;
  for (const { id, title } of items.filter((item) => !known?.has(item.id)).slice(0, 3)) {
    // Pages that are open beside this one show the same one by its tag.
    const note = new Notification("Overmind needs you", { body: title, tag: id });
    note.onclick = () => { window.focus(); location.href = "/"; };
  }
}

let busy = false;
async function count() {
  if (busy) return;
  busy = true;
  try {
    const answer = await fetch("/inbox/count");
    if (!answer.ok) return;
    const { items } = await answer.json();
    tell(items);
    known = new Set(items.map((/** @type {{ id: string }} */ item) => item.id));
    waiting = items.length;
    show();
  } catch {
    // The server is away: the last count stays.
  } finally {
    busy = false;
  }
}

if (button && "Notification" in window && Notification.permission === "default") {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await Notification.requestPermission();
    button.hidden = true;
  });
}
let due = 0;
document.addEventListener("overmind:shown", () => {
  show();
  due ||= setTimeout(() => { due = 0; count(); }, 1000);
});
// Pages without a stream of their own, and those that nobody looks at.
setInterval(count, 30000);
count();
