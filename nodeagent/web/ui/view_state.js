// The state of the view, in the part of the address after "#", so that a link leads to the same view.

const DEFAULTS = { at: "", color: "health", only: "", rail: "", fabric: "", job: "", list: "trouble", view: "" };

export class ViewState {
  /** `onChange(state, changed)` is called after each change, also by the Back button. */
  constructor(onChange) {
    this.onChange = onChange;
    this.values = this.read();
    addEventListener("hashchange", () => {
      const before = this.values;
      this.values = this.read();
      this.announce(before);
    });
  }

  read() {
    const values = { ...DEFAULTS };
    for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
      if (key in DEFAULTS) values[key] = value;
    }
    return values;
  }

  /** Change values. `quiet`: do not make an entry in the history, as for each step of a pan. */
  set(changes, quiet = false) {
    const before = this.values;
    this.values = { ...before, ...changes };
    const kept = Object.entries(this.values).filter(([key, value]) => value !== DEFAULTS[key]);
    const hash = `#${new URLSearchParams(kept)}`;
    if (hash !== location.hash) history[quiet ? "replaceState" : "pushState"](null, "", hash);
    this.announce(before);
  }

  announce(before) {
    const changed = new Set(Object.keys(DEFAULTS).filter((key) => before[key] !== this.values[key]));
    if (changed.size) this.onChange(this.values, changed);
  }
}
