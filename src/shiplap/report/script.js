// Shows the tooltip of the mark under the pointer or keyboard focus, and highlights its group. Without
// this script the browser shows the same tooltips, from the title elements.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const emphasis = document.head.appendChild(document.createElement("style"));
  let current = null;

  // The browser's own tooltip would cover ours, so an attribute replaces the title.
  const factsOf = (mark) => {
    const title = mark.querySelector("title");
    if (title) {
      mark.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    return mark.getAttribute("aria-label");
  };

  const place = (x, y) => {
    const width = tip.offsetWidth;
    const height = tip.offsetHeight;
    const below = y + 18 + height < innerHeight;
    tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - width - 8)) + "px";
    tip.style.top = Math.max(4, below ? y + 18 : y - height - 12) + "px";
  };

  const leave = () => {
    if (current) current.classList.remove("at");
    current = null;
    tip.hidden = true;
    emphasis.textContent = "";
    for (const arrow of document.querySelectorAll(".arrow.at")) arrow.remove();
  };

  // The arrow of a message, from the start of its send to the end of its recv.
  const drawArrow = (mark) => {
    const svg = mark.ownerSVGElement;
    const ends = [...svg.querySelectorAll(`[data-m="${mark.dataset.m}"]`)];
    const to = ends.find((end) => end.classList.contains("in"));
    const from = ends.find((end) => end !== to);
    if (!from || !to) return;
    const start = (end) => parseFloat(end.getAttribute("x"));
    const y = (end) => {
      const box = end.getBoundingClientRect();
      return box.top + box.height / 2 - svg.getBoundingClientRect().top;
    };
    const arrival = start(to) + parseFloat(to.getAttribute("width")) + "%";
    const add = (name, attributes) => {
      const part = document.createElementNS(svg.namespaceURI, name);
      part.setAttribute("class", "arrow at");
      for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
      svg.append(part);
    };
    add("line", { x1: start(from) + "%", y1: y(from), x2: arrival, y2: y(to) });
    add("circle", { cx: arrival, cy: y(to), r: 3 });
  };

  const show = (mark) => {
    if (mark === current) return;
    leave();
    current = mark;
    mark.classList.add("at");
    tip.textContent = factsOf(mark);
    tip.hidden = false;
    const group = mark.dataset.d;
    if (group !== undefined) {
      emphasis.textContent = `.boxes :is(.m,.n){opacity:.18}` +
          `.boxes :is(.m,.n)[data-d="${group}"]{opacity:1}`;
    }
    if (mark.dataset.m !== undefined) drawArrow(mark);
  };

  const middle = (mark) => {
    const box = mark.getBoundingClientRect();
    return box.left + box.width / 2;
  };

  const marksOf = (row) => [...row.children].filter((child) => child.classList.contains("m"));

  // The target of an arrow key: along the row, or the nearest mark of the next nonempty row.
  const next = (svg, key) => {
    const rows = [...svg.querySelectorAll(".row")].filter((row) => marksOf(row).length > 0);
    if (!current || !svg.contains(current)) return rows.length > 0 ? marksOf(rows[0])[0] : null;
    const row = current.parentNode;
    const marks = marksOf(row);
    if (key === "ArrowLeft") return marks[marks.indexOf(current) - 1];
    if (key === "ArrowRight") return marks[marks.indexOf(current) + 1];
    if (key === "Home") return marks[0];
    if (key === "End") return marks[marks.length - 1];
    const other = rows[rows.indexOf(row) + (key === "ArrowUp" ? -1 : 1)];
    if (!other) return null;
    const x = middle(current);
    const distance = (mark) => Math.abs(middle(mark) - x);
    return marksOf(other).reduce((best, mark) => (distance(mark) < distance(best) ? mark : best));
  };

  for (const svg of document.querySelectorAll("svg[tabindex]")) {
    svg.addEventListener("pointermove", (event) => {
      const mark = event.target.closest(".m");
      if (!mark) return leave();
      show(mark);
      place(event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return leave();
      if (!/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(event.key)) return;
      event.preventDefault();
      const mark = next(svg, event.key);
      if (!mark) return;
      show(mark);
      mark.scrollIntoView({ block: "nearest" });
      const box = mark.getBoundingClientRect();
      place(middle(mark), box.bottom);
    });
  }

  // Zooming widens the lanes in their frame; the point at `x` of the frame stays fixed.
  const zoom = (figure, factor, x) => {
    const frame = figure.querySelector(".scroll");
    const inner = figure.querySelector(".stretch");
    const before = inner.offsetWidth / frame.clientWidth;
    const after = factor === 0 ? 1 : Math.min(64, Math.max(1, before * factor));
    const at = x === undefined ? frame.clientWidth / 2 : x;
    const left = (frame.scrollLeft + at) * after / before - at;
    inner.style.width = 100 * after + "%";
    frame.scrollLeft = left;
    leave();
  };

  for (const figure of document.querySelectorAll("figure.lanes")) {
    const buttons = figure.querySelector(".zoom");
    if (!buttons) continue;
    buttons.hidden = false;
    buttons.addEventListener("click", (event) => {
      const factor = event.target.dataset.zoom;
      if (factor !== undefined) zoom(figure, Number(factor));
    });
    const frame = figure.querySelector(".scroll");
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(figure, event.deltaY < 0 ? 1.25 : 0.8, event.clientX - frame.getBoundingClientRect().left);
    }, { passive: false });
    frame.addEventListener("keydown", (event) => {
      const factor = { "+": 2, "=": 2, "-": 0.5, "0": 0 }[event.key];
      if (factor !== undefined && !event.ctrlKey && !event.metaKey) zoom(figure, factor);
    });
  }
  addEventListener("scroll", () => { if (current && !current.closest("svg:focus")) leave(); });
})();
