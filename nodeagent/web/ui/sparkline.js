// A small curve of the last ten minutes, with its last value in words.

import { el, svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 26;

/** `curve` is {name, unit, at, values}. The lowest and the highest value fill the height. */
export function sparkline(curve) {
  const { at, values } = curve;
  const low = Math.min(...values), high = Math.max(...values);
  const span = high - low || Math.abs(high) || 1;
  const x = (time) => ((time - at[0]) / (at.at(-1) - at[0] || 1)) * (WIDTH - 2);
  const y = (value) => (high === low ? HEIGHT / 2 : HEIGHT - 3 - ((value - low) / span) * (HEIGHT - 6));
  const path = values.map((value, i) => `${i ? "L" : "M"}${x(at[i]).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const text = `${curve.name}: ${amount(values.at(-1), curve.unit)}; lowest ${amount(low, curve.unit)}, highest ${amount(high, curve.unit)} in ${Math.round((at.at(-1) - at[0]) / 60)} min`;
  return el("figure", { class: "curve", title: text },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "xMinYMid", role: "img", "aria-label": text }, svg("path", { d: path }),
      svg("circle", { cx: WIDTH - 2, cy: y(values.at(-1)).toFixed(1), r: 2 })),
    el("figcaption", {}, el("b", { text: amount(values.at(-1), curve.unit) }), ` ${curve.name}`,
      high === low ? "" : el("span", { class: "range", text: ` · ${amount(low, curve.unit)} to ${amount(high, curve.unit)}` })));
}

/** A value with its unit, in the form that its readers use. */
export function amount(value, unit) {
  if (unit === "W") return value > 0 ? `${(10 * Math.log10(value * 1000)).toFixed(1)} dBm` : "no light";
  if (unit === "of the time") return `${(100 * value).toFixed(value && value < 0.1 ? 1 : 0)} %`;
  if (unit === "°C") return `${value.toFixed(0)} °C`;
  if (unit === "") return value ? value.toExponential(1) : "0";
  if (value === 0) return `0 ${unit}`;
  const size = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([limit]) => value >= limit) ?? [1, ""];
  return `${(value / size[0]).toPrecision(3)} ${size[1]}${unit}`;
}
