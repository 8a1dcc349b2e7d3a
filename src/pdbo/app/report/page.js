"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const roomy = matchMedia("(min-width: 48rem)");
let unique = 0;

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "circle", "text", "clipPath"].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);  // strings become text, never markup
  return node;
}

function show(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2).replace(/\.?0*e\+?/, "e"); // 1.50e+5 is 1.5e5
  return String(Number(value.toPrecision(4)));
}

// ---- axes -----------------------------------------------------------------------------------

class Scale {
  constructor(low, high, from, to, log) {
    Object.assign(this, { low, high, from, to, log });
    this.a = log ? Math.log10(low) : low;
    this.b = log ? Math.log10(high) : high;
    if (this.a === this.b) { this.a -= 0.5; this.b += 0.5; }
  }
  at(value) {
    const v = this.log ? Math.log10(value) : value;
    return this.from + ((v - this.a) / (this.b - this.a)) * (this.to - this.from);
  }
  back(pixel) {
    const v = this.a + ((pixel - this.from) / (this.to - this.from)) * (this.b - this.a);
    return this.log ? 10 ** v : v;
  }
  ticks(count) {
    const span = this.b - this.a;
    const rough = span / count;
    let step = 10 ** Math.floor(Math.log10(rough));
    for (const m of [1, 2, 5, 10]) if (step * m >= rough) { step *= m; break; }
    if (this.log) step = Math.max(1, Math.round(step));
    const found = [];
    for (let k = Math.ceil(this.a / step - 1e-9); k * step <= this.b + 1e-9 * span; k++) {
      found.push(this.log ? 10 ** (k * step) : k * step);
    }
    if (this.log && found.length < 2) return [this.back(this.from), this.back(this.to)];
    return found;
  }
}

function tickText(value, log) {
  if (log) {
    const power = Math.log10(value);
    if (Math.abs(power - Math.round(power)) < 1e-6 && (value < 1e-2 || value > 1e3)) return `1e${Math.round(power)}`;
  }
  return show(Math.abs(value) < 1e-12 ? 0 : value);
}

function extent(values, log) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null && (!log || v > 0)) { if (v < low) low = v; if (v > high) high = v; }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return [low / 1.3, high * 1.3];
  const margin = 0.04 * (high - low || Math.abs(high) || 1);
  return [low - margin, high + margin];
}

// ---- curves ---------------------------------------------------------------------------------

const LEFT = 60, RIGHT = 18, TOP = 8; // pixels: the margins of a chart
const LETTER = 5.6; // pixels: the approximate width of one letter
const MANY = 500; // points; a line with this many or more is drawn thin

class Chart {
  constructor(figure, panel, shown) {
    Object.assign(this, { figure, panel, shown });
    for (const c of panel.curves) if (c.x === null) c.x = c.y.map((_, k) => k);
    const every = (key) => panel.curves.flatMap((c) => c[key]);
    const heights = panel.curves.flatMap((c) => [...c.y, ...(c.low || []), ...(c.high || [])]);
    if (!panel.yLog && panel.curves.some((c) => c.kind === "bars")) heights.push(0);
    const ends = every("x").reduce(([a, b], v) => (v === null ? [a, b] : [Math.min(a, v), Math.max(b, v)]), [Infinity, -Infinity]);
    this.full = {
      x: panel.categories.length ? [-0.6, panel.categories.length - 0.4]
        : panel.xLog ? extent(every("x"), true) : ends[0] <= ends[1] ? ends : [0, 1],
      y: extent(heights, panel.yLog),
    };
    this.view = this.full;
    this.svg = make("svg", { class: "plot", role: "img", "aria-label": panel.title });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.reset = make("button", { class: "reset", type: "button", hidden: "" }, "reset zoom");
    this.reset.addEventListener("click", () => this.zoom(this.full));
    this.node = make("div", { class: "panel" }, make("h4", {}, panel.title), this.svg, this.tip, this.reset);
    this.svg.addEventListener("pointermove", (e) => this.move(e));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("pointerdown", (e) => this.press(e));
    this.svg.addEventListener("pointerup", (e) => this.release(e));
    this.svg.addEventListener("dblclick", () => this.zoom(this.full));
    this.draw();
  }

  zoom(view) {
    this.view = view;
    this.reset.hidden = view === this.full;
    this.draw();
  }

  // draws a one-column figure wide if the screen allows it, and slants long category names
  measure() {
    const { categories } = this.panel, longest = Math.max(0, ...categories.map((c) => c.length));
    this.width = this.figure.columns === 1 && roomy.matches ? 720 : 360;
    const room = (this.width - LEFT - RIGHT) / Math.max(1, categories.length);
    this.slanted = longest * LETTER > room;
    this.bottom = 36 + (this.slanted ? Math.min(90, 0.75 * LETTER * longest) : 0);
    this.height = 214 + this.bottom;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
  }

  marks() {
    if (!this.panel.categories.length) return this.x.ticks(5).map((t) => [t, tickText(t, this.panel.xLog)]);
    return this.panel.categories.map((c, k) => [k, c]).filter(([k]) => this.view.x[0] <= k && k <= this.view.x[1]);
  }

  draw() {
    const { panel, view } = this;
    this.measure();
    const WIDTH = this.width, HEIGHT = this.height, BOTTOM = this.bottom;
    this.x = new Scale(...view.x, LEFT, WIDTH - RIGHT, panel.xLog);
    this.y = new Scale(...view.y, HEIGHT - BOTTOM, TOP, panel.yLog);
    const clip = `clip${unique++}`;
    const parts = [
      make("clipPath", { id: clip }, make("rect", { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM })),
      make("rect", { class: "frame", x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM }),
    ];
    for (const [t, text] of this.marks()) {
      const at = this.x.at(t), below = HEIGHT - BOTTOM + 13;
      if (!panel.categories.length) parts.push(make("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }));
      parts.push(make("text", this.slanted ? { x: at, y: below, "text-anchor": "end", transform: `rotate(-45 ${at} ${below})` }
                                           : { x: at, y: below, "text-anchor": "middle" }, text));
    }
    for (const t of this.y.ticks(5)) {
      const at = this.y.at(t);
      parts.push(make("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
      parts.push(make("text", { x: LEFT - 5, y: at + 4, "text-anchor": "end" }, tickText(t, panel.yLog)));
    }
    parts.push(make("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, panel.x));
    parts.push(make("text", { x: 12, y: (TOP + HEIGHT - BOTTOM) / 2, "text-anchor": "middle",
      transform: `rotate(-90 12 ${(TOP + HEIGHT - BOTTOM) / 2})` }, panel.y));
    const curves = make("g", { "clip-path": `url(#${clip})` });
    const seen = panel.curves.filter((c) => this.shown[c.label]);
    const groups = seen.filter((c) => c.kind === "bars");
    for (const c of seen) {
      if (c.kind === "bars") this.bars(c, groups.indexOf(c), groups.length, curves);
      else this.line(c, curves);
    }
    this.cross = make("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.box = make("rect", { class: "select", visibility: "hidden" });
    this.svg.replaceChildren(...parts, curves, this.cross, this.box);
  }

  place(x, y) {
    if (x === null || y === null || (this.panel.xLog && x <= 0) || (this.panel.yLog && y <= 0)) return null;
    return [this.x.at(x), this.y.at(y)];
  }

  line(c, into) {
    const [slot, dash, full] = this.figure.styles[c.label], width = c.y.length < MANY ? full : 0.6 * full;
    const label = { "data-label": this.figure.labels[c.label] };
    const trail = (heights) => {
      let d = "", pen = "M", last = null;
      heights.forEach((v, k) => {
        const at = this.place(c.x[k], v);
        if (at === null) { pen = "M"; return; }
        if (pen === "L" && c.kind === "steps") d += `L${at[0].toFixed(1)} ${last[1].toFixed(1)}`;
        d += `${pen}${at[0].toFixed(1)} ${at[1].toFixed(1)}`;
        pen = "L";
        last = at;
      });
      return d;
    };
    if (c.low) {
      const edge = (heights) => heights.map((v, k) => this.place(c.x[k], v)).filter(Boolean).map((p) => p.map((v) => v.toFixed(1)).join(" "));
      const ring = [...edge(c.high), ...edge(c.low).reverse()];
      if (ring.length) into.append(make("path", { class: `band f${slot}`, d: `M${ring.join("L")}Z` }));
    }
    if (c.points) {
      c.y.forEach((v, k) => {
        const at = this.place(c.x[k], v);
        if (at) into.append(make("circle", { class: `f${slot}`, cx: at[0], cy: at[1], r: 2.6 }));
      });
    }
    into.append(make("path", { class: `curve s${slot}`, d: trail(c.y), "stroke-width": width, "stroke-dasharray": dash || "none", ...label }));
  }

  bars(c, index, count, into) {
    const [slot] = this.figure.styles[c.label], floor = this.panel.yLog ? this.height - this.bottom : this.y.at(0);
    const room = 0.8 * Math.abs(this.x.at(1) - this.x.at(0)), width = room / count;
    c.y.forEach((v, k) => {
      const at = this.place(c.x[k], v);
      if (at === null) return;
      const left = at[0] - room / 2 + index * width, middle = left + width / 2;
      into.append(make("rect", { class: `bar f${slot}`, x: left, width: 0.92 * width, y: Math.min(at[1], floor),
        height: Math.abs(at[1] - floor), "data-label": this.figure.labels[c.label] }));
      const low = c.low && this.place(c.x[k], c.low[k]), high = c.high && this.place(c.x[k], c.high[k]);
      if (low && high) into.append(make("line", { class: "whisker", x1: middle, x2: middle, y1: low[1], y2: high[1] }));
    });
  }

  where(event) {
    const area = this.svg.getBoundingClientRect();
    const px = ((event.clientX - area.left) / area.width) * this.width;
    const py = ((event.clientY - area.top) / area.height) * this.height;
    return [Math.min(Math.max(px, LEFT), this.width - RIGHT), Math.min(Math.max(py, TOP), this.height - this.bottom)];
  }

  move(event) {
    const [px, py] = this.where(event);
    if (this.from) {
      const [x, y] = this.from;
      const place = { x: Math.min(x, px), y: Math.min(y, py), width: Math.abs(px - x), height: Math.abs(py - y), visibility: "visible" };
      for (const [k, v] of Object.entries(place)) this.box.setAttribute(k, v);
    }
    const value = this.x.back(px);
    let nearest = null;
    const rows = [];
    for (const c of this.panel.curves) {
      if (!this.shown[c.label] || !c.x.length) continue;
      let low = 0, high = c.x.length - 1;
      while (high - low > 1) { const mid = (low + high) >> 1; if (c.x[mid] < value) low = mid; else high = mid; }
      const k = c.kind === "steps" ? (c.x[high] <= value ? high : low)
        : Math.abs(c.x[low] - value) <= Math.abs(c.x[high] - value) ? low : high;
      if (nearest === null || Math.abs(c.x[k] - value) < Math.abs(nearest - value)) nearest = c.x[k];
      rows.push(make("div", {}, make("span", { class: `name t${this.figure.styles[c.label][0]}` }, this.figure.labels[c.label]),
        make("span", {}, c.high ? `${show(c.y[k])} ± ${show(c.high[k] === null ? null : c.high[k] - c.y[k])}` : show(c.y[k]))));
    }
    if (nearest === null) { this.leave(); return; }
    const at = this.x.at(nearest);
    this.cross.setAttribute("x1", at); this.cross.setAttribute("x2", at); this.cross.setAttribute("visibility", "visible");
    this.tip.replaceChildren(make("div", {}, make("b", {}, this.panel.categories[nearest] || `${this.panel.x} ${show(nearest)}`)), ...rows);
    this.tip.hidden = false;
    const area = this.svg.getBoundingClientRect(), room = this.tip.offsetWidth + 14, x = (at / this.width) * area.width;
    const left = x + room < area.width ? x + 14 : Math.max(0, x - room);
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${this.svg.offsetTop + 14}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.cross.setAttribute("visibility", "hidden");
    if (this.from) { this.from = null; this.box.setAttribute("visibility", "hidden"); }
  }

  press(event) {
    if (event.pointerType === "mouse" && event.button === 0) { this.from = this.where(event); event.preventDefault(); }
  }

  release(event) {
    if (!this.from) return;
    const [x, y] = this.from, [px, py] = this.where(event);
    this.from = null;
    this.box.setAttribute("visibility", "hidden");
    if (Math.abs(px - x) < 8 || Math.abs(py - y) < 8) return;
    this.zoom({
      x: [this.x.back(Math.min(x, px)), this.x.back(Math.max(x, px))],
      y: [this.y.back(Math.max(y, py)), this.y.back(Math.min(y, py))],
    });
  }
}

function legend(labels, styles, shown, changed) {
  const node = make("div", { class: "legend", role: "group", "aria-label": "methods" });
  labels.forEach((label, k) => {
    const [slot, dash, width] = styles[k];
    const sample = make("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" },
      make("line", { class: `s${slot}`, x1: 0, x2: 28, y1: 5, y2: 5, "stroke-width": width, "stroke-dasharray": dash || "none" }));
    const button = make("button", { type: "button", "aria-pressed": "true" }, sample, label);
    button.addEventListener("click", () => {
      shown[k] = !shown[k];
      button.setAttribute("aria-pressed", String(shown[k]));
      changed();
    });
    node.append(button);
  });
  return node;
}

for (const node of document.querySelectorAll("[data-figure]")) {
  const figure = data.figures[node.dataset.figure];
  const shown = figure.labels.map(() => true);
  const charts = figure.panels.map((panel) => new Chart(figure, panel, shown));
  roomy.addEventListener("change", () => charts.forEach((c) => c.draw()));
  const panels = make("div", { class: figure.columns === 1 ? "panels wide" : "panels" }, ...charts.map((c) => c.node));
  node.prepend(legend(figure.labels, figure.styles, shown, () => charts.forEach((c) => c.draw())), panels);
}

// ---- landscapes -----------------------------------------------------------------------------

const SIDE = 460, EDGE = 40; // pixels: the side of a landscape, and its margin for labels
const LONG = 400, TAIL = 60; // iterations: of a path longer than LONG only the last TAIL are bold

class Landscape {
  constructor(node, scene) {
    this.scene = scene;
    this.shown = scene.labels.map(() => true);
    this.start = 0;
    const [left, right, bottom, top] = scene.box;
    this.x = new Scale(left, right, EDGE, SIDE - 10, false);
    this.y = new Scale(bottom, top, SIDE - EDGE, 10, false);
    this.most = scene.paths[0][0].length / 2 - 1;
    this.moving = make("g");
    this.slider = make("input", { type: "range", min: 0, max: 1000, value: 1000, "aria-label": "iteration" });
    this.output = make("output");
    this.play = make("button", { type: "button" }, "▶ play");
    this.table = make("table", { class: "results" });
    this.note = make("p", { class: "note", "aria-live": "polite" });
    this.slider.addEventListener("input", () => { this.stop(); this.draw(); });
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.run()));
    const controls = make("div", { class: "controls" }, this.play, this.slider, this.output);
    const aside = make("div", {}, legend(scene.labels, scene.styles, this.shown, () => this.draw()),
      make("div", { class: "scroll" }, this.table), this.note);
    node.append(make("div", { class: "stage" }, make("div", {}, this.ground(), controls), aside));
    this.draw();
  }

  line(numbers) {
    let d = "", pen = "M";
    for (let k = 0; k < numbers.length / 2; k++) {
      if (numbers[2 * k] === null || numbers[2 * k + 1] === null) { pen = "M"; continue; }
      d += `${pen}${this.x.at(numbers[2 * k]).toFixed(1)} ${this.y.at(numbers[2 * k + 1]).toFixed(1)}`;
      pen = "L";
    }
    return d;
  }

  ground() {
    const { scene } = this, clip = `clip${unique++}`;
    const frame = { x: EDGE, y: 10, width: SIDE - EDGE - 10, height: SIDE - EDGE - 10 };
    const inside = make("g", { "clip-path": `url(#${clip})` });
    for (const c of scene.contours) for (const l of c.lines) inside.append(make("path", { class: "contour", d: this.line(l) }));
    for (const [, points] of scene.lines) inside.append(make("path", { class: "valley", d: this.line(points) }));
    inside.append(this.moving);
    for (const [x, y] of scene.optima) {
      const cx = this.x.at(x), cy = this.y.at(y);
      let d = "";
      for (let k = 0; k < 10; k++) {
        const r = k % 2 ? 3.6 : 9, a = (Math.PI * k) / 5;
        d += `${k ? "L" : "M"}${(cx + r * Math.sin(a)).toFixed(1)} ${(cy - r * Math.cos(a)).toFixed(1)}`;
      }
      inside.append(make("path", { class: "optimum", d: `${d}Z` }));
    }
    const group = make("g", { role: "radiogroup", "aria-label": "start" });
    this.circles = scene.starts.map(([x, y], k) => {
      const circle = make("circle", { class: "start", cx: this.x.at(x), cy: this.y.at(y), r: 7, tabindex: 0, role: "radio",
        "aria-label": `start ${scene.axes[0]} = ${x}, ${scene.axes[1]} = ${y}` });
      const choose = () => { this.start = k; this.draw(); };
      circle.addEventListener("click", choose);
      circle.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); choose(); } });
      group.append(circle);
      return circle;
    });
    const marks = [];
    for (const t of this.x.ticks(6)) marks.push(make("text", { x: this.x.at(t), y: SIDE - EDGE + 15, "text-anchor": "middle" }, tickText(t)));
    for (const t of this.y.ticks(6)) marks.push(make("text", { x: EDGE - 6, y: this.y.at(t) + 4, "text-anchor": "end" }, tickText(t)));
    marks.push(make("text", { x: (SIDE + EDGE) / 2, y: SIDE - 6, "text-anchor": "middle" }, scene.axes[0]));
    marks.push(make("text", { x: 12, y: (SIDE - EDGE) / 2, "text-anchor": "middle" }, scene.axes[1]));
    return make("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "group", "aria-label": "landscape" },
      make("clipPath", { id: clip }, make("rect", frame)), make("rect", { class: "frame", ...frame }), inside, group, ...marks);
  }

  // quadratic in the slider: paths change most in their first iterations
  get iteration() { return Math.round(this.most * (this.slider.value / 1000) ** 2); }

  draw() {
    const { scene } = this, k = this.iteration;
    const parts = [], rows = [];
    scene.labels.forEach((label, m) => {
      const path = scene.paths[m][this.start], [slot, dash, width] = scene.styles[m];
      const [x, y] = [path[2 * k], path[2 * k + 1]];
      rows.push(make("tr", {}, make("td", { class: `name t${slot}` }, label), make("td", {}, show(x)), make("td", {}, show(y))));
      if (!this.shown[m]) return;
      const look = { "stroke-width": width, "stroke-dasharray": dash || "none" };
      const bold = k > LONG ? k - TAIL : 0;
      if (bold) parts.push(make("path", { class: `path faint s${slot}`, d: this.line(path.slice(0, 2 * (bold + 1))), ...look }));
      parts.push(make("path", { class: `path s${slot}`, d: this.line(path.slice(2 * bold, 2 * (k + 1))), ...look, "data-label": label }));
      if (x !== null) parts.push(make("circle", { class: `f${slot}`, cx: this.x.at(x), cy: this.y.at(y), r: 4.5, "data-head": label }));
    });
    this.moving.replaceChildren(...parts);
    this.circles.forEach((c, s) => c.setAttribute("aria-checked", String(s === this.start)));
    this.note.textContent = scene.notes[this.start];
    this.output.textContent = `${k} / ${this.most}`;
    const head = make("tr", {}, make("th", {}, "method"), make("th", {}, scene.axes[0]), make("th", {}, scene.axes[1]));
    this.table.replaceChildren(make("caption", {}, `At iteration ${k} of ${this.most}.`), make("thead", {}, head), make("tbody", {}, ...rows));
  }

  run() {
    if (Number(this.slider.value) >= 1000) this.slider.value = 0;
    this.play.textContent = "❚❚ pause";
    this.timer = setInterval(() => {
      this.slider.value = Number(this.slider.value) + 8;
      this.draw();
      if (Number(this.slider.value) >= 1000) this.stop();
    }, 40);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "▶ play";
  }
}

for (const node of document.querySelectorAll("[data-scene]")) new Landscape(node, data.scenes[node.dataset.scene]);
document.documentElement.dataset.ready = "true";
