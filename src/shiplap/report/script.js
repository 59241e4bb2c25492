// Shows the facts of what the pointer or the keyboard is at, and the whole group of a box. Without
// this script the browser shows the same facts, from the title elements.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const emphasis = document.head.appendChild(document.createElement("style"));
  let current = null;

  // The browser's own tooltip would cover ours, so the title gives way to an attribute.
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
      emphasis.textContent = `.boxes .m{opacity:.18}.boxes .m[data-d="${group}"]{opacity:1}`;
    }
  };

  const middle = (mark) => {
    const box = mark.getBoundingClientRect();
    return box.left + box.width / 2;
  };

  const marksOf = (row) => [...row.children].filter((child) => child.classList.contains("m"));

  // Where an arrow key leads: along the row, or to what is nearest in the next row that has any.
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
  addEventListener("scroll", () => { if (current && !current.closest("svg:focus")) leave(); });
})();
