"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");

  function panel(svg, index) {
    const { steps, a, b, relative } = data.panels[index];
    const rule = svg.querySelector(".rule");
    const span = steps[steps.length - 1] - steps[0];
    const at = (step) => data.left + (span ? (step - steps[0]) / span : 0.5) * data.width;
    let place = 0;

    function nearest(x) {
      const step = steps[0] + ((x - data.left) / data.width) * span;
      let low = 0, high = steps.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (steps[middle] <= step) low = middle;
        else high = middle;
      }
      return step - steps[low] <= steps[high] - step ? low : high;
    }

    function show(next, left, top) {
      place = Math.min(steps.length - 1, Math.max(0, next));
      const x = at(steps[place]);
      rule.setAttribute("x1", x);
      rule.setAttribute("x2", x);
      rule.removeAttribute("visibility");
      tip.textContent = `step ${steps[place].toLocaleString("en-US")}\nA ${a[place]}\nB ${b[place]}\nrelative difference ${relative[place]}`;
      tip.hidden = false;
      const box = svg.getBoundingClientRect();
      const pointerX = left ?? box.left + (x / svg.viewBox.baseVal.width) * box.width;
      const pointerY = top ?? box.top + 12;
      const right = pointerX + 16 + tip.offsetWidth > innerWidth;
      const below = pointerY + 16 + tip.offsetHeight > innerHeight;
      tip.style.left = `${Math.max(4, right ? pointerX - tip.offsetWidth - 12 : pointerX + 16)}px`;
      tip.style.top = `${Math.max(4, below ? pointerY - tip.offsetHeight - 12 : pointerY + 16)}px`;
    }

    function hide() {
      tip.hidden = true;
      rule.setAttribute("visibility", "hidden");
    }

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      show(nearest(x), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      show(place + move);
    });
  }

  document.querySelectorAll("svg").forEach(panel);
})();
