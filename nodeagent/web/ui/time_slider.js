// What changed, on the map: the newest changes, or with the slider those up to a moment of the last hours.
// The slider stays the same element while documents come, so that a drag and the focus survive.

import { clock, duration, el, replace } from "./dom.js";
import { historyList } from "./history.js";

const HOURS = 12;
const STEP_MIN = 5;
const ASKED_MAX = 2000;
const ASK_AGAIN_S = 60;

export class TimeSlider {
  /** `section` receives the card; `ask(question)` answers with the document of a page of the server, while `isLive()`. */
  constructor(section, ask, isLive) {
    [this.section, this.ask, this.isLive] = [section, ask, isLive];
    this.changes = [];
    this.taken = 0;
    this.isSwitch = () => false;
    this.until = null; // Unix time; null: now
    this.asked = null;
    this.list = el("div");
    this.said = el("output", { class: "quiet" });
    this.slider = el("input", {
      type: "range", min: -HOURS * 60, max: 0, step: STEP_MIN, value: 0, "aria-label": "Show what changed up to a moment of the last hours",
      oninput: () => this.move(Number(this.slider.value)),
    });
    this.card = [el("h2", { text: "What changed" }), el("p", { class: "slider" }, this.slider, this.said), this.list];
    this.say();
  }

  /** The changes of a new document, which was made at `taken` (Unix time). */
  show(changes, isSwitch, taken) {
    [this.changes, this.isSwitch, this.taken] = [changes ?? [], isSwitch, taken];
    if (!this.changes.length) this.section.replaceChildren();
    else if (!this.section.firstChild) this.section.append(...this.card);
    if (this.until === null) this.fill(this.changes);
  }

  /** To a moment: so many minutes (0 or less) from now. */
  async move(minutes) {
    const now = this.isLive() ? Date.now() / 1000 : this.taken;
    const until = minutes ? now + minutes * 60 : null;
    this.until = until;
    this.say(minutes);
    if (until === null) {
      this.fill(this.changes);
      return;
    }
    const known = await this.known(now);
    if (this.until === until) this.fill(known.changes.filter((change) => change.at <= until), known.note);
  }

  /** The changes of the last hours. They are asked for once while the slider moves. */
  async known(now) {
    if (!this.isLive()) return { changes: this.changes, note: "" };
    if (!this.asked || now - this.asked.at > ASK_AGAIN_S) this.asked = { at: now, answer: this.read(now - HOURS * 3600) };
    return this.asked.answer;
  }

  async read(since) {
    try {
      const { changes, complete } = await this.ask(`history.json?since=${since}&limit=${ASKED_MAX}`);
      return { changes, note: complete || !changes.length ? "" : `This controller knows none before ${clock(changes[0].at)}.` };
    } catch (error) {
      this.asked = null;
      return { changes: this.changes, note: `Earlier ones are not known: ${error.message}` };
    }
  }

  say(minutes = 0) {
    const text = minutes ? `up to ${clock(this.until)}, ${duration(-minutes * 60)} ago` : "up to now";
    this.said.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }

  fill(changes, note = "") {
    const shown = historyList(changes, this.isSwitch);
    replace(this.list, ...shown, shown.length ? "" : el("p", { class: "none", text: "Nothing that is known up to then." }), note && el("p", { class: "quiet", text: note }));
  }
}
