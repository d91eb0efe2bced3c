"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const chips = all(".filters .chip");

function filter() {
  const on = (kind) => new Set(chips.filter((c) => c.dataset.kind === kind && c.ariaPressed === "true").map((c) => c.dataset.value));
  const verdicts = on("verdict"), scales = on("scale");
  const claims = all(".claim");
  const everything = chips.every((c) => c.ariaPressed === "true");
  for (const claim of claims) claim.hidden = !(verdicts.has(claim.dataset.verdict) && scales.has(claim.dataset.scale));
  for (const paper of all("section.paper")) paper.hidden = !everything && !paper.querySelector(".claim:not([hidden])");
  const left = claims.filter((c) => !c.hidden).length;
  document.querySelector(".shown").textContent = everything ? `${claims.length} claims` : `${left} of ${claims.length} claims`;
  document.getElementById("nothing").hidden = everything || left > 0;
}

function set(chip, pressed) {
  chip.setAttribute("aria-pressed", String(pressed));
}

for (const chip of chips) chip.addEventListener("click", () => { set(chip, chip.ariaPressed !== "true"); filter(); });
document.getElementById("reset").addEventListener("click", () => { chips.forEach((c) => set(c, true)); filter(); });

// A link to a claim that the filter hides shows it again.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target || (!target.hidden && !target.closest("[hidden]"))) return;
  chips.forEach((c) => set(c, true));
  filter();
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);

for (const button of all(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    let copied = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      copied = document.execCommand("copy");
    }
    button.textContent = copied ? "copied" : "selected";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}

const viewer = document.getElementById("viewer");
for (const button of all(".zoom")) {
  button.addEventListener("click", () => {
    const from = button.querySelector("img"), to = viewer.querySelector("img");
    to.src = from.src;
    to.alt = from.alt;
    viewer.showModal();
  });
}
viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });

const entries = new Map(all("nav.papers a").map((a) => [a.hash.slice(1), a]));
const watcher = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    if (!isIntersecting || !entries.has(target.id)) continue;
    entries.forEach((a) => a.removeAttribute("aria-current"));
    entries.get(target.id).setAttribute("aria-current", "true");
  }
}, { rootMargin: "-15% 0px -75% 0px" });
all("section[id]").forEach((section) => watcher.observe(section));

let closed = [];
addEventListener("beforeprint", () => { closed = all("details:not([open])"); closed.forEach((d) => { d.open = true; }); });
addEventListener("afterprint", () => closed.forEach((d) => { d.open = false; }));
