"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const LEFT = 52, BOTTOM = 24, TOP = 4;
  // Of one block: see `blocks` in plan_page.py.
  const MICROBATCH = 0, FIRST = 1, RANKS = 2, START = 3, END = 4, SIZE = 5, COUNT = 6, TOKENS = 7, MEMBERS = 8, GROUPS = 9;
  const view = { from: 0, to: 1 };
  const panels = [...document.querySelectorAll(".panel")].map((section, index) => ({
    section, canvas: section.querySelector("canvas"), ...data.panels[index],
  }));
  const shown = (panel) => panel.section.tagName !== "DETAILS" || panel.section.open;
  const whole = () => Math.max(...panels.filter(shown).map((panel) => panel.end)) || 1;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const height = Math.min(380, Math.max(72, data.ranks * 24));

  const number = (value) => value.toLocaleString("en-US");
  function time(value) {
    if (value === 0) return "0";
    if (!data.seconds && value < 1e5) return String(Number(value.toPrecision(3)));
    if (!data.seconds) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    if (value >= 1) return `${Number(value.toPrecision(4))} s`;
    return value >= 1e-3 ? `${Number((value * 1e3).toPrecision(4))} ms` : `${Number((value * 1e6).toPrecision(3))} µs`;
  }
  function clamp() {
    const all = whole();
    const span = Math.min(all, Math.max(all / 5000, view.to - view.from));
    view.from = Math.min(Math.max(0, view.from), all - span);
    view.to = view.from + span;
  }

  function hatch(context) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const brush = tile.getContext("2d");
    brush.fillStyle = css("--idle");
    brush.fillRect(0, 0, 8, 8);
    brush.strokeStyle = css("--hatch");
    for (const offset of [-8, 0, 8]) {
      brush.moveTo(offset, 8);
      brush.lineTo(offset + 8, 0);
    }
    brush.stroke();
    return context.createPattern(tile, "repeat");
  }

  function draw(panel) {
    const ratio = window.devicePixelRatio || 1;
    const width = panel.canvas.clientWidth;
    if (!width) return;
    panel.canvas.style.height = `${height + TOP + BOTTOM}px`;
    panel.canvas.width = width * ratio;
    panel.canvas.height = (height + TOP + BOTTOM) * ratio;
    const context = panel.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    const scale = (width - LEFT - 1) / (view.to - view.from);
    const x = (at) => LEFT + (at - view.from) * scale;
    const row = height / data.ranks;
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height + TOP);
    context.clip();
    context.fillStyle = hatch(context);
    context.fillRect(x(0), TOP, panel.until * scale, height);
    drawRest(context, panel, x);
    const thin = new Map();
    for (const block of panel.blocks) {
      if (x(block[END]) - x(block[START]) < 2) collect(thin, block, x, width);
      else drawBlock(context, block, x, row);
    }
    drawThin(context, thin, row);
    drawEnds(context, panel, x);
    context.restore();
    drawAxes(context, width, x, row);
  }

  function drawBlock(context, block, x, row) {
    const left = x(block[START]), right = x(block[END]);
    if (right < LEFT || left > context.canvas.width) return;
    const ratio = window.devicePixelRatio || 1;
    const snap = (at) => Math.round(at * ratio) / ratio;  // no half-covered rows between groups
    const top = snap(TOP + block[FIRST] * row);
    const tall = snap(TOP + (block[FIRST] + block[RANKS]) * row) - top;
    const gap = tall > 5 ? 1 : 0;
    const wide = Math.max(right - left - (right - left > 5 ? 1 : 0), 0.6);
    context.fillStyle = data.colours[block[SIZE]];
    context.fillRect(left, top, wide, Math.max(tall - gap, 0.5));
    const visible = Math.max(left, LEFT), room = left + wide - visible;
    if (room < 30 || tall < 13 || block[GROUPS] > 1) return;
    context.fillStyle = data.inks[block[SIZE]];
    context.textAlign = "left";
    context.textBaseline = "middle";
    const text = room > 96 ? `CP ${data.sizes[block[SIZE]]} · ${number(block[COUNT])} seq` : `CP ${data.sizes[block[SIZE]]}`;
    if (context.measureText(text).width < room - 6) context.fillText(text, visible + 4, top + tall / 2);
  }

  // Many blocks share a pixel: it is as opaque as they fill it, so that idle time shines through.
  function collect(thin, block, x, width) {
    const left = x(block[START]), right = x(block[END]);
    if (right < LEFT || left > width) return;
    for (let column = Math.floor(left); column < right; column += 1) {
      const key = `${block[FIRST]} ${block[RANKS]} ${block[SIZE]} ${column}`;
      const share = Math.min(right, column + 1) - Math.max(left, column);
      thin.set(key, (thin.get(key) || 0) + share);
    }
  }

  function drawThin(context, thin, row) {
    for (const [key, share] of thin) {
      const [first, ranks, size, column] = key.split(" ").map(Number);
      context.globalAlpha = Math.min(1, share);
      context.fillStyle = data.colours[size];
      context.fillRect(column, TOP + first * row, 1, Math.max(ranks * row, 0.5));
    }
    context.globalAlpha = 1;
  }

  function drawRest(context, panel, x) {
    const from = Math.max(x(panel.until), LEFT), room = x(panel.end) - from;
    if (panel.until >= panel.end || room < 60) return;
    context.fillStyle = css("--soft");
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText("not drawn", from + 6, TOP + height / 2);
  }

  function drawEnds(context, panel, x) {
    if (!data.together) return;
    context.fillStyle = css("--mark");
    let last = -10;
    for (const end of panel.ends) {
      const at = x(end);
      if (at - last < 6) continue;
      context.fillRect(at - 0.5, TOP, 1, height);
      last = at;
    }
  }

  function drawAxes(context, width, x, row) {
    context.fillStyle = css("--soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = Math.max(1, 2 ** Math.ceil(Math.log2(data.ranks / Math.max(1, height / 24))));
    for (let rank = 0; rank < data.ranks; rank += step) {
      const middle = TOP + (rank + (step === 1 ? 0.5 : 0)) * row;
      context.fillText(String(rank), LEFT - 8, Math.max(8, middle));
    }
    context.save();
    context.translate(9, TOP + height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText("rank", 0, 0);
    context.restore();
    const span = view.to - view.from;
    const rough = span / Math.max(2, Math.floor(width / 130));
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
    context.textBaseline = "top";
    for (let at = Math.ceil(view.from / tick) * tick; at <= view.to; at += tick) {
      context.fillRect(x(at), TOP + height, 1, 4);
      const text = time(Math.abs(at) < tick / 1e6 ? 0 : at);
      const half = context.measureText(text).width / 2;
      context.textAlign = "center";
      context.fillText(text, Math.min(x(at), width - half - 1), TOP + height + 7);
    }
  }

  function found(panel, event) {
    const box = panel.canvas.getBoundingClientRect();
    const at = view.from + ((event.clientX - box.left - LEFT) / (box.width - LEFT - 1)) * (view.to - view.from);
    const rank = Math.floor(((event.clientY - box.top - TOP) / height) * data.ranks);
    if (event.clientX - box.left < LEFT || rank < 0 || rank >= data.ranks || at < 0 || at > panel.end) return null;
    const block = panel.blocks.find((item) => at >= item[START] && at <= item[END] && rank >= item[FIRST] && rank < item[FIRST] + item[RANKS]);
    return { block, rank, at, drawn: at <= panel.until };
  }

  function describe({ block, rank, at, drawn }) {
    if (!block && !drawn) return "not drawn: the batch is too long for the picture";
    if (!block) return `rank ${number(rank)} is idle at ${time(at)}`;
    const last = block[FIRST] + block[RANKS] - 1;
    const ranks = last === block[FIRST] ? `rank ${last}` : `ranks ${number(block[FIRST])} to ${number(last)}`;
    const many = block[GROUPS] > 1;
    const lines = [
      `microbatch ${number(block[MICROBATCH])}, ${ranks}`,
      many ? `${number(block[GROUPS])} groups, most of CP size ${data.sizes[block[SIZE]]}` : `CP size ${data.sizes[block[SIZE]]}`,
      `${many ? "mean time" : "time"} ${time(block[END] - block[START])}, from ${time(block[START])}`,
      `${number(block[COUNT])} sequence${block[COUNT] === 1 ? "" : "s"}, ${number(block[TOKENS])} tokens`,
    ];
    for (const [id, length] of block[MEMBERS]) lines.push(`  #${id}: ${number(length)} tokens`);
    if (block[COUNT] > block[MEMBERS].length) lines.push(`  and ${number(block[COUNT] - block[MEMBERS].length)} more`);
    return lines.join("\n");
  }

  function hover(panel, event) {
    const hit = found(panel, event);
    tip.hidden = !hit;
    if (!hit) return;
    tip.textContent = describe(hit);
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
    const below = event.clientY + 16 + tip.offsetHeight > innerHeight;
    tip.style.left = `${Math.max(4, right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 16)}px`;
    tip.style.top = `${Math.max(4, below ? event.clientY - tip.offsetHeight - 12 : event.clientY + 16)}px`;
  }

  function zoom(factor, at) {
    const middle = at === undefined ? (view.from + view.to) / 2 : at;
    view.from = middle - (middle - view.from) * factor;
    view.to = middle + (view.to - middle) * factor;
    redraw();
  }

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      clamp();
      panels.filter(shown).forEach(draw);
    });
  }
  function all() {
    view.from = 0;
    view.to = whole();
    redraw();
  }

  for (const panel of panels) {
    const { canvas } = panel;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from: view.from, span: view.to - view.from };
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("moving");
    });
    const release = () => {
      held = null;
      canvas.classList.remove("moving");
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointermove", (event) => {
      if (held) {
        view.from = held.from - ((event.clientX - held.x) / (canvas.clientWidth - LEFT)) * held.span;
        view.to = view.from + held.span;
        redraw();
      }
      hover(panel, event);
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const share = (event.offsetX - LEFT) / (canvas.clientWidth - LEFT);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, view.from + share * (view.to - view.from));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
      if (step) {
        const move = step * (view.to - view.from);
        view.from += move;
        view.to += move;
        redraw();
      } else if (event.key === "+") zoom(0.7);
      else if (event.key === "-") zoom(1.4);
    });
    if (panel.section.tagName === "DETAILS") panel.section.addEventListener("toggle", all);
  }
  for (const button of document.querySelectorAll("[data-zoom]")) {
    const actions = { in: () => zoom(0.6), out: () => zoom(1.6), all };
    button.addEventListener("click", actions[button.dataset.zoom]);
  }
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  all();
})();
