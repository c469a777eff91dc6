// Tables that can be sorted, filtered and opened to their full length.
function sortable({ place, controls, columns, rows, sort, limit, search, pick, isCurrent, caption }) {
  let sorting = { key: sort, down: true }, open = false, wanted = "";
  const value = (row, key) => columns.find((column) => column.key === key).value(row);
  const body = html("tbody"), more = html("button", { type: "button" });
  const heads = columns.map((column) => {
    const button = html("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      sorting = { key: column.key, down: sorting.key === column.key ? !sorting.down : column.number };
      fill();
    });
    return html("th", { scope: "col", class: column.class ?? (column.number ? "number" : "") }, button);
  });
  const fill = () => {
    const found = rows.filter((row) => !wanted || columns.some((column) => String(column.value(row)).toLowerCase().includes(wanted)));
    const direction = sorting.down ? -1 : 1;
    found.sort((a, b) => {
      const [first, second] = [value(a, sorting.key), value(b, sorting.key)];
      return direction * (typeof first === "string" ? first.localeCompare(second, "en", { numeric: true }) : first - second);
    });
    heads.forEach((head, index) => {
      if (columns[index].key === sorting.key) head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
      head.firstChild.textContent = columns[index].title + (columns[index].key === sorting.key ? (sorting.down ? " ↓" : " ↑") : "");
    });
    body.replaceChildren(...found.filter((row, index) => open || index < limit || isCurrent?.(row)).map(line));
    more.hidden = found.length <= limit;
    more.textContent = open ? `Show the first ${limit}` : `Show all ${number(found.length)}`;
  };
  const line = (row) => {
    const element = html("tr", {}, ...columns.map((column) => html("td", { class: column.class ?? (column.number ? "number" : "") }, ...[column.cell(row)].flat())));
    if (pick) {
      element.classList.add("pick");
      element.classList.toggle("current", isCurrent(row));
      element.addEventListener("click", () => pick(row));
    }
    return element;
  };
  more.addEventListener("click", () => { open = !open; fill(); });
  if (search) {
    const box = html("input", { type: "search", placeholder: search, "aria-label": search });
    box.addEventListener("input", () => { wanted = box.value.trim().toLowerCase(); fill(); });
    controls.append(box);
  }
  controls.append(more);
  place.append(html("table", { "aria-label": caption }, html("thead", {}, html("tr", {}, ...heads)), body));
  fill();
  return fill;
}

const bar = (share) => svg("svg", { class: "bar", viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: Math.max(0.4, 100 * share), height: 12, rx: 0.5 }));
const times = (count) => (count > 1 ? [html("span", { class: "count" }, `× ${count}`)] : []);
const dot = (kind) => style(html("i", { class: "dot" }), { background: KINDS[kind] ?? KINDS.layout });
const column = (key, title, value, cell, more = {}) => ({ key, title, value, cell, number: true, ...more });

function drawLayers(select, isSelected) {
  const rows = data.layers.map((layer, index) => ({ ...layer, index, count: alike.get(layer.planned_as) })).filter((layer) => layer.planned_as === layer.name);
  const cost = (row) => row.seconds * row.count, whole = rows.reduce((sum, row) => sum + cost(row), 0), longest = Math.max(...rows.map(cost));
  by("parts-lede").textContent = `${number(data.layers.length)} layers${rows.length < data.layers.length ? `, ${number(rows.length)} of them different; layers alike are planned once and shown as one row with their number` : ""}. Times are of a whole step.`;
  return sortable({
    place: by("parts-table"), controls: by("parts-controls"), rows, sort: "seconds", limit: 16, caption: "Layers by time",
    pick: (row) => select(row.index), isCurrent: (row) => data.layers[isSelected()].planned_as === row.name,
    columns: [
      column("name", "layer", (row) => row.name, (row) => [row.name, ...times(row.count)], { number: false, class: "name" }),
      column("seconds", "time", cost, (row) => [bar(cost(row) / longest), html("span", {}, duration(cost(row)))], { class: "bar-column" }),
      column("share", "share", cost, (row) => percent(cost(row) / whole)),
      column("utilization", "utilization", (row) => row.utilization, (row) => percent(row.utilization, 2)),
      column("weights", "weights", (row) => row.weight_bytes, (row) => size(row.weight_bytes)),
      column("sram", "SRAM of a PE", (row) => Math.max(row.forward_sram, row.backward_sram), (row) => kib(Math.max(row.forward_sram, row.backward_sram))),
      column("bound", "bound", (row) => row.bound, (row) => row.bound, { number: false }),
    ],
  });
}

function drawRegionsTable(select, isSelected) {
  const rows = data.regions.map((region, index) => ({ ...region, index })), slowest = Math.max(1, ...rows.map((row) => row.cycles));
  by("parts-lede").textContent = "Every sample passes every region, so the slowest sets the rate; bars of one length mean a balanced plan.";
  return sortable({
    place: by("parts-table"), controls: by("parts-controls"), rows, sort: "cycles", limit: 12, caption: "Regions by time", search: "Find a region",
    pick: (row) => select(row.index), isCurrent: (row) => row.index === isSelected(),
    columns: [
      column("name", "region", (row) => row.name, (row) => [dot(row.kind), row.name], { number: false, class: "name" }),
      column("cycles", "cycles a sample", (row) => row.cycles, (row) => [bar(row.cycles / slowest), html("span", {}, number(row.cycles))], { class: "bar-column" }),
      column("rate", "samples/s", (row) => row.rate, (row) => significant(row.rate)),
      column("pes", "PEs", (row) => row.width * row.height, (row) => number(row.width * row.height)),
      column("utilization", "utilization", (row) => row.utilization, (row) => percent(row.utilization)),
      column("sram", "SRAM of a PE", (row) => row.sram, (row) => kib(row.sram)),
      column("kernels", "kernels", (row) => row.kernels, (row) => number(row.kernels)),
    ],
  });
}

function drawKernels() {
  by("kernels-lede").textContent = `${number(kernels.length)} kernels${kernels.some((kernel) => kernel.count > 1) ? ", those of layers alike once" : ""}. Times and bytes are of a whole step.`;
  sortable({
    place: by("kernels-table"), controls: by("kernels-controls"), rows: kernels, sort: "seconds", limit: 15, caption: "Kernels", search: "Find a kernel, module or file",
    columns: [
      column("name", "kernel", (row) => row.name, (row) => [dot(row.kind), row.name, ...times(row.count), html("span", { class: "sub" }, [row.module || "(model)", row.source].filter(Boolean).join("  ·  "))], { number: false, class: "name" }),
      column("kind", "kind", (row) => row.kind, (row) => row.kind, { number: false }),
      column("phase", "phase", (row) => row.phase, (row) => row.phase, { number: false }),
      column("seconds", "time", (row) => row.seconds * row.count, (row) => duration(row.seconds * row.count)),
      column("utilization", "utilization", (row) => row.utilization, (row) => percent(row.utilization)),
      column("pes", "PEs", (row) => row.pes, (row) => number(row.pes)),
      column("sram", "SRAM of a PE", (row) => row.sram, (row) => kib(row.sram)),
      column("fabric", "fabric", (row) => row.fabric_bytes * row.count, (row) => size(row.fabric_bytes * row.count)),
      column("off_wafer", "off-wafer", (row) => row.off_wafer_bytes * row.count, (row) => size(row.off_wafer_bytes * row.count)),
      column("bound", "bound", (row) => row.bound, (row) => row.bound, { number: false }),
    ],
  });
}
