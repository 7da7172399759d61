// The console's only script: it tells how long things are away, and brings fresh parts of the page when something has changed.
// Without it every page works as well; it has to be loaded again to see changes.
"use strict";

const body = document.body;

// ---------------------------------------------------------------- time

/** As `parts::span` writes it. */
function span(ms) {
  const seconds = Math.floor(Math.max(ms, 0) / 1000);
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(seconds / 3600);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${minutes} min`;
  if (seconds < 36000 && minutes % 60) return `${hours} h ${minutes % 60} min`;
  return seconds < 172800 ? `${hours} h` : `${Math.floor(hours / 24)} d`;
}

function tick() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-ago]")) write(time, `${span(now - time.dataset.ago)} ago`);
  for (const time of document.querySelectorAll("time[data-until]")) {
    const left = time.dataset.until - now;
    write(time, left > 0 ? `${span(left)} left` : "over");
    time.toggleAttribute("data-soon", left < 120000);
  }
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

setInterval(tick, 1000);
tick();

// On a phone the pages stand in one row, which may be longer than the window.
document.querySelector(".places [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// ---------------------------------------------------------------- fresh parts

let wanted = null; // the least revision that the page has to show
let isLoading = false;
let isLeaving = false;
addEventListener("beforeunload", () => (isLeaving = true));

/** Whether somebody is at it: has the focus in one of its fields, or has written something. */
function isBusy(element) {
  const field = document.activeElement;
  if (element.contains(field) && field.matches("input, textarea, select")) return true;
  return [...element.querySelectorAll("textarea, input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
}

/** Puts what is new in place of what is old, and leaves alone what somebody is at. */
function renew(old, fresh) {
  const open = [...old.querySelectorAll("details[open][id]")].map((details) => details.id);
  const busy = new Map([...old.querySelectorAll("article[id]")].filter(isBusy).map((article) => [article.id, article]));
  if (!busy.size && isBusy(old)) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  for (const article of fresh.querySelectorAll("article[id]")) {
    if (busy.has(article.id)) article.replaceWith(busy.get(article.id));
  }
  old.replaceChildren(...fresh.childNodes);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (!focused || document.activeElement === focused) return;
  // The same place in the new part, so that nobody who goes by keyboard is thrown back to the top.
  const same = focused.id ? document.getElementById(focused.id) : [...old.querySelectorAll("a, button, summary")].find((found) => found.outerHTML === focused.outerHTML);
  same?.focus({ preventScroll: true });
}

async function load() {
  if (isLoading) return;
  isLoading = true;
  const seen = wanted;
  try {
    const address = new URL(location.href);
    address.searchParams.delete("said");
    if (seen) address.searchParams.set("seen", seen);
    const answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (answer.redirected) return location.reload();
    if (answer.ok) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const part = fresh.getElementById(old.id);
        if (part && part.innerHTML !== old.innerHTML) renew(old, part);
      }
      const heading = fresh.querySelector("h1");
      if (heading) write(document.querySelector("h1"), heading.textContent);
      document.title = fresh.title;
      tick();
    }
    show(answer.ok ? "Live" : "Waiting for the cluster", answer.ok);
    if (!answer.ok) setTimeout(load, 2000);
  } catch {
    show("Reconnecting", false);
    if (!isLeaving) setTimeout(load, 2000);
  } finally {
    isLoading = false;
    if (wanted !== seen) soon();
  }
}

let waiting = 0;

/** Several changes at once make one load. */
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(load, 250);
}

const live = document.getElementById("live");

function show(text, isWell) {
  if (!live) return;
  live.hidden = false;
  live.toggleAttribute("data-well", isWell);
  write(live, text);
}

// ---------------------------------------------------------------- the stream

let since = body.dataset.since;

function follow() {
  const query = new URLSearchParams({ kinds: body.dataset.kinds });
  if (since) query.set("since", since);
  const stream = new EventSource(`/console/stream?${query}`);
  const at = (event) => (since = JSON.parse(event.data).revision ?? since);
  stream.addEventListener("open", () => show("Live", true));
  stream.addEventListener("progress", (event) => {
    at(event);
    show("Live", true);
  });
  stream.addEventListener("change", (event) => {
    wanted = at(event);
    soon();
  });
  for (const name of ["compacted", "refused"]) {
    stream.addEventListener(name, () => {
      stream.close();
      location.reload();
    });
  }
  stream.addEventListener("error", () => {
    if (isLeaving) return;
    show("Reconnecting", false);
    // A browser comes back by itself after a break, and not after an answer that is no stream.
    if (stream.readyState === EventSource.CLOSED) {
      setTimeout(() => {
        load();
        follow();
      }, 1500);
    }
  });
}

if (body.dataset.kinds) follow();
if (body.dataset.refreshMs) setInterval(() => !document.hidden && load(), Number(body.dataset.refreshMs));

// ---------------------------------------------------------------- the slider

const slider = document.getElementById("back");
slider?.addEventListener("input", () => {
  write(document.getElementById("back-name"), slider.dataset.names.split("|")[slider.value]);
  document.getElementById("at").value = "";
});
slider?.addEventListener("change", () => slider.form.requestSubmit());
