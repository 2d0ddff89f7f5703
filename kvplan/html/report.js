"use strict";
// Draws the plots of the report from the JSON in the page. No library, no network.
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const W = 420, H = 240, PAD = { left: 58, right: 12, top: 12, bottom: 36 };
  const SHAPES = ["circle", "square", "diamond", "triangle"];
  const color = index => `var(--s${index % 8})`;

  const element = (name, attributes = {}, parent = null, text = null) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, className, parent, text = "") => {
    const node = document.createElement(name);
    if (className) node.className = className;
    node.textContent = text;
    parent.append(node);
    return node;
  };
  const median = values => {
    const sorted = [...values].sort((a, b) => a - b), middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  };
  const show = value => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(3)));
  };
  const ticks = (low, high, count = 5) => {
    if (low === high) high = low + 1;
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(size => size >= raw);
    const first = Math.ceil(low / step - 1e-9), found = [];
    for (let index = first; index * step <= high + step * 1e-6; index++) found.push(Number((index * step).toPrecision(12)));
    return found;
  };
  // Up to a tick that no value is above.
  const ticksAbove = (low, high) => {
    const found = ticks(low, high), step = found.length > 1 ? found[1] - found[0] : 1;
    if (found[found.length - 1] < high) found.push(Number((found[found.length - 1] + step).toPrecision(12)));
    return found;
  };

  function figure(parent, title, note, wide = false) {
    const node = html("figure", wide ? "wide" : "", parent);
    const caption = html("figcaption", "", node, title);
    if (note) html("small", "", caption, ` ${note}`);
    const tip = html("div", "tip", node);
    const tipAt = (event, text) => {
      const box = node.getBoundingClientRect();
      tip.textContent = text;
      tip.style.display = "block";
      const x = event.clientX - box.left + 12;
      tip.style.left = `${Math.min(x, box.width - tip.offsetWidth - 4)}px`;
      tip.style.top = `${event.clientY - box.top + 14}px`;
    };
    const hideTip = () => { tip.style.display = "none"; };
    const hover = (target, text) => {
      target.addEventListener("pointermove", event => tipAt(event, text));
      target.addEventListener("pointerleave", hideTip);
      element("title", {}, target, text);
    };
    return { node, caption, tipAt, hideTip, hover };
  }

  function frame(parent, { width = W, height = H, xTicks, yTicks, x, y, xTitle, yTitle }) {
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, parent);
    for (const value of yTicks) {
      element("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }, svg);
      element("text", { x: PAD.left - 6, y: y(value) + 4, "text-anchor": "end" }, svg, show(value));
    }
    element("line", { class: "axis", x1: PAD.left, x2: width - PAD.right, y1: height - PAD.bottom, y2: height - PAD.bottom }, svg);
    for (const [value, label] of xTicks)
      element("text", { x: x(value), y: height - PAD.bottom + 15, "text-anchor": "middle" }, svg, label);
    element("text", { x: (PAD.left + width - PAD.right) / 2, y: height - 4, "text-anchor": "middle" }, svg, xTitle);
    if (yTitle) element("text", { x: 12, y: (height - PAD.bottom) / 2, "text-anchor": "middle",
      transform: `rotate(-90 12 ${(height - PAD.bottom) / 2})` }, svg, yTitle);
    return svg;
  }

  const scale = (low, high, from, to) => value => high === low ? (from + to) / 2 : from + (value - low) / (high - low) * (to - from);

  function mark(svg, shape, x, y, size, fill) {
    const paths = {
      circle: () => element("circle", { cx: x, cy: y, r: size, fill }, svg),
      square: () => element("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, fill }, svg),
      diamond: () => element("path", { d: `M${x} ${y - 1.3 * size}l${1.3 * size} ${1.3 * size}l${-1.3 * size} ${1.3 * size}l${-1.3 * size} ${-1.3 * size}z`, fill }, svg),
      triangle: () => element("path", { d: `M${x} ${y - 1.2 * size}l${1.2 * size} ${2.2 * size}h${-2.4 * size}z`, fill }, svg),
    };
    return paths[shape]();
  }

  function legend(parent, names, toggle) {
    if (names.length < 2) return;
    const box = html("div", "legend", parent);
    names.forEach((name, index) => {
      const button = html("button", "", box);
      button.type = "button";
      const swatch = html("i", "", button);
      swatch.style.background = color(index);
      button.append(name);
      button.addEventListener("click", () => toggle(index, !button.classList.toggle("off")));
    });
  }

  // One metric against the axis that varies most; one line for each combination of the other axes.
  function lines(parent, data, metric, axis) {
    const groups = data.groups.filter(group => group.values[metric.key].length);
    if (!groups.length) return;
    const positions = [...new Set(groups.map(group => group.settings[axis]))];
    const numeric = positions.every(value => typeof value === "number");
    if (numeric) positions.sort((a, b) => a - b);
    const others = data.axes.filter(name => name !== axis);
    const nameOf = group => others.map(name => `${name}=${group.shown[name]}`).join(" ");
    const names = [...new Set(groups.map(nameOf))];
    const values = groups.flatMap(group => group.values[metric.key].map(value => value * metric.scale));
    const low = Math.min(0, ...values), yTicks = ticksAbove(low, Math.max(...values));
    const top = Math.max(yTicks[yTicks.length - 1], ...values);
    const y = scale(low, top, H - PAD.bottom, PAD.top);
    const step = (W - PAD.left - PAD.right) / positions.length;
    const x = value => PAD.left + (positions.indexOf(value) + 0.5) * step;
    const note = [metric.unit, metric.better && `${metric.better} is better`, data.simulated && "simulated"].filter(Boolean).join(", ");
    const plot = figure(parent, metric.title, note ? `(${note})` : "");
    const labels = new Map(groups.map(group => [group.settings[axis], group.shown[axis]]));
    const svg = frame(plot.node, { xTicks: positions.map(value => [value, labels.get(value)]), yTicks, x, y, xTitle: axis });
    const layers = names.map((name, index) => {
      const layer = element("g", {}, svg), shift = (index - (names.length - 1) / 2) * Math.min(5, step / (names.length + 1));
      const own = groups.filter(group => nameOf(group) === name)
        .sort((a, b) => positions.indexOf(a.settings[axis]) - positions.indexOf(b.settings[axis]));
      const at = group => [x(group.settings[axis]) + shift, y(median(group.values[metric.key]) * metric.scale)];
      // Between values that are no numbers there is nothing on the way.
      if (own.length > 1 && numeric) element("polyline", { points: own.map(group => at(group).join(",")).join(" "), fill: "none",
        stroke: color(index), "stroke-width": 1.5, "stroke-dasharray": ["", "6 3", "2 3", "8 3 2 3"][index % 4] }, layer);
      for (const group of own) {
        const found = group.values[metric.key].map(value => value * metric.scale), [px, py] = at(group);
        const least = Math.min(...found), most = Math.max(...found);
        if (most > least) element("path", { d: `M${px - 4} ${y(least)}h8M${px} ${y(least)}V${y(most)}M${px - 4} ${y(most)}h8`,
          stroke: color(index), fill: "none", "stroke-width": 1.2 }, layer);
        const dot = mark(layer, SHAPES[index % 4], px, py, 4, color(index));
        plot.hover(dot, `${group.label}\n${metric.title}: ${show(median(found))} ${metric.unit}` +
          (found.length > 1 ? `\n${found.length} repeats: ${show(least)} to ${show(most)}` : "") +
          (group.finished ? "" : `\nnot finished: ${group.message}`));
      }
      return layer;
    });
    legend(plot.node, names, (index, on) => { layers[index].style.display = on ? "" : "none"; });
  }

  // Throughput against latency; the points that no other beats in both are joined.
  function pareto(parent, data) {
    const goal = data.metrics.find(metric => metric.key === data.objective);
    const waits = data.metrics.filter(metric => /^(e2e|ttft|itl)_/.test(metric.key));
    const middles = [goal, ...waits].map(metric => new Set(data.groups.map(group => metric && group.values[metric.key].length ? median(group.values[metric.key]) : null)).size);
    if (!goal || !waits.length || !middles.some(count => count > 1)) return;
    const plot = figure(parent, `${goal.title} against latency`, "(up and left is better; the line joins what nothing beats)");
    const choose = html("select", "", plot.caption);
    choose.setAttribute("aria-label", "latency");
    for (const metric of waits) html("option", "", choose, `${metric.title} (${metric.unit})`).value = metric.key;
    const preferred = waits.find(metric => metric.key.startsWith("e2e_p99")) || waits[0];
    choose.value = preferred.key;
    let svg = null;
    const draw = () => {
      if (svg) svg.remove();
      const wait = waits.find(metric => metric.key === choose.value);
      const points = data.groups.filter(group => group.values[goal.key].length && group.values[wait.key].length)
        .map(group => ({ group, x: median(group.values[wait.key]), y: median(group.values[goal.key]) }));
      if (!points.length) return;
      const xs = points.map(point => point.x), ys = points.map(point => point.y);
      const xTicks = ticksAbove(0, Math.max(...xs)), yTicks = ticksAbove(0, Math.max(...ys));
      const x = scale(0, Math.max(xTicks[xTicks.length - 1], ...xs), PAD.left, W - PAD.right - 10);
      const y = scale(0, Math.max(yTicks[yTicks.length - 1], ...ys), H - PAD.bottom, PAD.top);
      svg = frame(plot.node, { xTicks: xTicks.map(value => [value, show(value)]), yTicks, x, y, xTitle: `${wait.title} (${wait.unit})`, yTitle: goal.unit });
      const front = points.filter(point => !points.some(other => other !== point && other.x <= point.x && other.y >= point.y
        && (other.x < point.x || other.y > point.y))).sort((a, b) => a.x - b.x);
      element("polyline", { points: front.map(point => `${x(point.x)},${y(point.y)}`).join(" "), fill: "none", stroke: "var(--mark)", "stroke-width": 1.5 }, svg);
      const taken = [];
      points.forEach((point, index) => {
        const dot = mark(svg, front.includes(point) ? "diamond" : "circle", x(point.x), y(point.y), 4.5, color(index));
        plot.hover(dot, `${point.group.label}\n${goal.title}: ${show(point.y)} ${goal.unit}\n${wait.title}: ${show(point.x)} ${wait.unit}`);
        if (points.length <= 6) {
          const left = x(point.x) > W * 0.6, offsets = [-7, 15, -20, 28, -33, 41];
          // The nearest place above or below the mark at which no other label stands.
          const offset = offsets.find(one => !taken.some(line => Math.abs(line - y(point.y) - one) < 12)) ?? -7;
          taken.push(y(point.y) + offset);
          const name = Object.values(point.group.shown).join(", ") || point.group.label;
          element("text", { x: x(point.x) + (left ? -8 : 8), y: y(point.y) + offset, "text-anchor": left ? "end" : "start" }, svg, name);
        }
      });
    };
    choose.addEventListener("change", draw);
    draw();
  }

  function pick(plot, groups, draw) {
    let current = null;
    const redraw = index => { if (current) current.forEach(node => node.remove()); current = draw(groups[index]); };
    if (groups.length > 1) {
      const choose = html("select", "", plot.caption);
      choose.setAttribute("aria-label", "point");
      groups.forEach((group, index) => { html("option", "", choose, group.label).value = index; });
      choose.addEventListener("change", () => redraw(Number(choose.value)));
    } else html("small", "", plot.caption, ` ${groups[0].label}`);
    redraw(0);
  }

  function usage(parent, data) {
    const groups = data.groups.filter(group => group.timeline);
    if (!groups.length) return;
    const plot = figure(parent, "the pool over time", "(blocks in use: mean, and peak as the thin line; preemptions as ticks below)", true);
    const width = 1000, height = 230;
    pick(plot, groups, group => {
      const line = group.timeline, last = line.start.length - 1;
      const end = last ? line.start[last] + (line.start[last] - line.start[last - 1]) : line.start[0] + 1;
      const xTicks = ticks(line.start[0], end, 8), yTicks = ticks(0, group.usable);
      const x = scale(line.start[0], end, PAD.left, width - PAD.right), y = scale(0, Math.max(group.usable, yTicks[yTicks.length - 1]), height - PAD.bottom, PAD.top);
      const svg = frame(plot.node, { width, height, xTicks: xTicks.map(value => [value, show(value)]), yTicks, x, y,
        xTitle: `time (${group.unit || "steps"})`, yTitle: "blocks" });
      const stairs = values => values.map((value, index) => `${x(line.start[index])},${y(value)} ${x(index < last ? line.start[index + 1] : end)},${y(value)}`).join(" ");
      element("polygon", { points: `${x(line.start[0])},${y(0)} ${stairs(line.mean_used_blocks)} ${x(end)},${y(0)}`, fill: color(0), opacity: 0.25 }, svg);
      element("polyline", { points: stairs(line.mean_used_blocks), fill: "none", stroke: color(0), "stroke-width": 1.6 }, svg);
      element("polyline", { points: stairs(line.max_used_blocks), fill: "none", stroke: color(0), "stroke-width": 0.7, opacity: 0.8 }, svg);
      element("line", { x1: PAD.left, x2: width - PAD.right, y1: y(group.usable), y2: y(group.usable), stroke: color(1), "stroke-dasharray": "5 3" }, svg);
      element("text", { x: width - PAD.right, y: y(group.usable) + 12, "text-anchor": "end" }, svg, `${show(group.usable)} usable`);
      line.preemptions.forEach((count, index) => {
        if (count) element("line", { x1: x(line.start[index]), x2: x(line.start[index]), y1: height - PAD.bottom, y2: height - PAD.bottom - 4 - Math.min(count, 12), stroke: color(1), "stroke-width": 2 }, svg);
      });
      const cover = element("rect", { x: PAD.left, y: PAD.top, width: width - PAD.left - PAD.right, height: height - PAD.top - PAD.bottom, fill: "transparent" }, svg);
      cover.addEventListener("pointermove", event => {
        const box = svg.getBoundingClientRect(), at = line.start[0] + ((event.clientX - box.left) / box.width * width - PAD.left) / (width - PAD.left - PAD.right) * (end - line.start[0]);
        let index = line.start.findIndex(start => start > at) - 1;
        if (index < 0) index = last;
        plot.tipAt(event, `${group.unit === "s" ? `${show(line.start[index])} s` : `step ${show(line.start[index])}`}\nblocks in use: ${show(line.mean_used_blocks[index])}, peak ${show(line.max_used_blocks[index])}` +
          `\nrunning: ${show(line.mean_running[index])}\nwaiting, at most: ${show(line.max_waiting[index])}\npreemptions: ${line.preemptions[index]}`);
      });
      cover.addEventListener("pointerleave", plot.hideTip);
      return [svg];
    });
  }

  function heat(parent, data) {
    const groups = data.groups.filter(group => group.heat);
    if (!groups.length) return;
    const plot = figure(parent, "which blocks were used when", "(blue: share in use; green: free but cached; rows are ranges of block ids)", true);
    const width = 1000, height = 300;
    pick(plot, groups, group => {
      const map = group.heat, rows = map.used[0].length, columns = map.steps.length;
      const x = scale(0, columns, PAD.left, width - PAD.right), y = scale(0, rows, PAD.top, height - PAD.bottom);
      const xTicks = ticks(0, columns - 1, 8).filter(Number.isInteger);
      const svg = frame(plot.node, { width, height, xTicks: xTicks.map(index => [index, show(map.steps[index])]), yTicks: [], x, y, xTitle: "step", yTitle: "block id" });
      element("text", { x: PAD.left - 6, y: PAD.top + 10, "text-anchor": "end" }, svg, "0");
      element("text", { x: PAD.left - 6, y: height - PAD.bottom, "text-anchor": "end" }, svg, show(rows * map.blocks_per_row - 1));
      const cell = { width: x(1) - x(0) + 0.3, height: y(1) - y(0) + 0.3 };
      for (let column = 0; column < columns; column++)
        for (let row = 0; row < rows; row++) {
          const used = map.used[column][row], cached = map.cached[column][row];
          if (cached) element("rect", { x: x(column), y: y(row), ...cell, fill: color(2), opacity: 0.12 + 0.4 * cached / 100 }, svg);
          if (used) element("rect", { x: x(column), y: y(row), ...cell, fill: color(0), opacity: 0.1 + 0.9 * used / 100 }, svg);
        }
      svg.addEventListener("pointermove", event => {
        const box = svg.getBoundingClientRect();
        const column = Math.floor(((event.clientX - box.left) / box.width * width - PAD.left) / (width - PAD.left - PAD.right) * columns);
        const row = Math.floor(((event.clientY - box.top) / box.height * height - PAD.top) / (height - PAD.top - PAD.bottom) * rows);
        if (!(column in map.used) || !(row in map.used[0])) return plot.hideTip();
        plot.tipAt(event, `step ${map.steps[column]}, blocks ${row * map.blocks_per_row} to ${(row + 1) * map.blocks_per_row - 1}\nin use: ${map.used[column][row]} %\nfree but cached: ${map.cached[column][row]} %`);
      });
      svg.addEventListener("pointerleave", plot.hideTip);
      return [svg];
    });
  }

  function planned(parent, data) {
    const rows = data.groups.flatMap(group => group.planned.map(item => ({ ...item, label: group.label })));
    if (!rows.length) return;
    const names = [...new Set(rows.map(row => row.name))];
    const plot = figure(parent, "measured over planned", "(100 %: exactly as planned)", true), width = 1000;
    const share = row => row.planned ? 100 * row.measured / row.planned : row.measured ? null : 100;
    const found = rows.map(share).filter(value => value !== null);
    const yTicks = ticksAbove(0, Math.max(110, ...found)), y = scale(0, yTicks[yTicks.length - 1], H - PAD.bottom, PAD.top);
    const step = (width - PAD.left - PAD.right) / names.length, x = name => PAD.left + (names.indexOf(name) + 0.5) * step;
    const svg = frame(plot.node, { width, xTicks: names.map(name => [name, name]), yTicks, x, y, xTitle: "", yTitle: "%" });
    element("line", { x1: PAD.left, x2: width - PAD.right, y1: y(100), y2: y(100), stroke: "var(--mark)", "stroke-dasharray": "5 3" }, svg);
    const labels = [...new Set(rows.map(row => row.label))];
    for (const row of rows) {
      const value = share(row), index = labels.indexOf(row.label);
      if (value === null) continue;
      const shift = (index - (labels.length - 1) / 2) * Math.min(8, step / (labels.length + 1));
      plot.hover(mark(svg, SHAPES[index % 4], x(row.name) + shift, y(value), 4, color(index)), `${row.label}\n${row.name}\nplanned ${show(row.planned)}, measured ${show(row.measured)}`);
    }
    legend(plot.node, labels, () => {});
  }

  // Divergence from the reference cache by how many tokens came before; positions double from tick to tick.
  function quality(parent, data) {
    const groups = data.groups.filter(group => group.quality && group.quality.kl_max > 0);
    if (!groups.length) return;
    const spans = groups.flatMap(group => group.quality.by_position);
    const starts = [...new Set(spans.map(span => span.start))].sort((a, b) => a - b);
    const logs = spans.map(span => Math.log10(span.kl_mean)).filter(Number.isFinite);
    const low = Math.floor(Math.min(...logs)), high = Math.max(Math.ceil(Math.max(...logs)), low + 1);
    const yTicks = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
    const place = scale(low, high, H - PAD.bottom, PAD.top), y = value => place(Math.log10(value));
    const step = (W - PAD.left - PAD.right) / starts.length, x = start => PAD.left + (starts.indexOf(start) + 0.5) * step;
    const reference = [...new Set(groups.map(group => group.quality.reference))].join(", ");
    const plot = figure(parent, "divergence by position", `(nats from a ${reference} cache, mean, logarithmic; lower is better)`);
    const svg = frame(plot.node, { xTicks: starts.map(start => [start, `${start}+`]), yTicks, x, y, xTitle: "tokens before" });
    const layers = groups.map((group, index) => {
      const layer = element("g", {}, svg), own = group.quality.by_position.filter(span => span.kl_mean > 0);
      element("polyline", { points: own.map(span => `${x(span.start)},${y(span.kl_mean)}`).join(" "), fill: "none", stroke: color(index), "stroke-width": 1.5 }, layer);
      for (const span of own)
        plot.hover(mark(layer, SHAPES[index % 4], x(span.start), y(span.kl_mean), 4, color(index)),
          `${group.label}\nfrom ${span.start} tokens on: ${show(span.kl_mean)} nats\nsame likeliest token: ${show(100 * span.top1_agreement)} % of ${span.num_positions}`);
      return layer;
    });
    legend(plot.node, groups.map(group => group.label), (index, on) => { layers[index].style.display = on ? "" : "none"; });
  }

  // Where the slots of the pool were, a bar a point; what is missing to the whole was free.
  function memory(parent, data) {
    const groups = data.groups.filter(group => group.memory);
    if (!groups.length) return;
    const parts = ["used", "pending", "reserved", "internal", "external"];
    const plot = figure(parent, "where the slots were", "(% of the pool, mean over time; the rest was free)", true);
    const width = 1000, height = H, yTicks = [0, 25, 50, 75, 100], y = scale(0, 100, height - PAD.bottom, PAD.top);
    const step = (width - PAD.left - PAD.right) / groups.length, x = group => PAD.left + (groups.indexOf(group) + 0.5) * step;
    const name = group => Object.values(group.shown).join(", ") || group.label;
    const svg = frame(plot.node, { width, height, xTicks: groups.map(group => [group, name(group)]), yTicks, x, y, xTitle: data.axes.join(", "), yTitle: "%" });
    const layers = parts.map(() => element("g", {}, svg)), bar = Math.min(step * 0.7, 90);
    for (const group of groups) {
      let below = 0;
      parts.forEach((part, index) => {
        const slots = group.memory[`${part}_slots_mean`], share = 100 * slots / group.memory.total_slots;
        const box = element("rect", { x: x(group) - bar / 2, y: y(below + share), width: bar, height: y(below) - y(below + share), fill: color(index) }, layers[index]);
        plot.hover(box, `${group.label}\n${part}: ${show(slots)} slots, ${show(share)} % of the pool`);
        below += share;
      });
    }
    legend(plot.node, parts, (index, on) => { layers[index].style.display = on ? "" : "none"; });
  }

  const series = JSON.parse(document.getElementById("data").textContent);
  for (const box of document.querySelectorAll(".plots")) {
    const data = series[Number(box.dataset.series)];
    const variety = axis => new Set(data.groups.map(group => group.settings[axis])).size;
    const axis = [...data.axes].sort((a, b) => variety(b) - variety(a))[0];
    const wanted = [data.objective, "preemptions", "tail_waste_fraction", "prefix_hit_rate", "recomputed_tokens", "peak_usage", "kl_mean", "top1_agreement"];
    const tails = data.metrics.filter(metric => /_p99_/.test(metric.key));
    const chosen = [...[...new Set(wanted)].map(key => data.metrics.find(metric => metric.key === key)).filter(Boolean), ...tails];
    const everyValue = metric => new Set(data.groups.flatMap(group => group.values[metric.key]));
    const constant = chosen.filter(metric => everyValue(metric).size === 1);
    if (axis && data.groups.length > 1) {
      for (const metric of chosen.filter(one => !constant.includes(one))) lines(box, data, metric, axis);
      const same = constant.map(metric => `${metric.title} ${show([...everyValue(metric)][0] * metric.scale)} ${metric.unit}`.trim());
      if (same.length) {
        const note = html("p", "facts", box.parentNode, `The same at every point: ${same.join(" · ")}`);
        box.before(note);
      }
    }
    pareto(box, data);
    planned(box, data);
    quality(box, data);
    memory(box, data);
    usage(box, data);
    heat(box, data);
  }
})();
