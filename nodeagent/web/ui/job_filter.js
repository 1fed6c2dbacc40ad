// The filter of the map by job: a field that names a job, and the nodes of this job. A server has the pods if it was
// configured with `jobs: true`; the page shows no field for any other, and none in a file.

import { el, replace } from "./dom.js";

const TYPED_MS = 200;

export class JobFilter {
  /** `ask` asks the server; `choose` is called with the name of a job, and `changed` when `nodes` have changed. */
  constructor(place, ask, choose, changed) {
    Object.assign(this, { place, ask, choose, changed, nodes: null, later: 0 });
    this.options = el("datalist", { id: "jobs" });
    this.field = el("input", {
      type: "search", list: "jobs", placeholder: "Job", "aria-label": "Show the nodes of a job only", autocomplete: "off", spellcheck: "false",
      oninput: () => this.typed(), onchange: () => this.choose(this.field.value.trim()),
      onkeydown: (event) => event.key === "Enter" && this.choose(this.field.value.trim()),
    });
    this.said = el("span", { class: "quiet", role: "status" });
  }

  find(text) {
    return this.ask(`jobs.json?text=${encodeURIComponent(text)}`);
  }

  /** Show the nodes that this job has now; without a name: all nodes. Called again for each document. */
  async show(job) {
    if (!this.place.children.length) {
      replace(this.place, this.field, this.options, this.said);
      this.field.value = job;
      if (!job) this.typed();
    }
    const found = job ? await this.find(job).catch(() => []) : [];
    const nodes = job ? found.find((entry) => entry.job === job)?.nodes ?? [] : null;
    this.said.textContent = job && !nodes.length ? "no such job runs on a node" : "";
    const same = String(nodes) === String(this.nodes && [...this.nodes]);
    this.nodes = nodes && new Set(nodes);
    if (document.activeElement !== this.field) this.field.value = job;
    if (!same) this.changed();
  }

  /** A job that was offered, and an empty field, are chosen at once. */
  typed() {
    const text = this.field.value.trim();
    if (!text || [...this.options.children].some((option) => option.value === text)) this.choose(text);
    clearTimeout(this.later);
    this.later = setTimeout(async () => {
      const found = await this.find(text).catch(() => []);
      replace(this.options, found.map((entry) => el("option", { value: entry.job })));
    }, TYPED_MS);
  }
}
