// The panel beside the wafer: the numbers of what is selected.
function facts(rows) {
  return html("dl", {}, ...rows.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
}

function showRegion(index) {
  const region = data.regions[index];
  const linked = (end) => data.routes.filter((route) => route[end] === index);
  const others = (end, other) => linked(end).map((route) => `${data.regions[route[other]].name} (${number(route[2])} hop${route[2] === 1 ? "" : "s"}, colour ${route[3]}, ${size(route[4])})`);
  by("details").replaceChildren(
    html("h3", {}, region.name),
    html("p", { class: "kind" }, `${region.kind}, ${region.kernels} kernel${region.kernels === 1 ? "" : "s"}`),
    facts([
      ["Rectangle", `${region.width} × ${region.height} at column ${region.x}, row ${region.y}`],
      ["PEs", `${number(region.width * region.height)} (${percent((region.width * region.height) / (data.columns * data.rows))} of the fabric)`],
      ["Cycles a sample", number(region.cycles)],
      ["Rate", `${significant(region.rate)} samples/s`],
      ["Utilization", percent(region.utilization)],
      ["SRAM of a PE", `${kib(region.sram)} of ${kib(data.sram_bytes_per_pe)}`],
      ...(linked(1).length ? [["From", others(1, 0).join(", ")]] : []),
      ...(linked(0).length ? [["To", others(0, 1).join(", ")]] : []),
    ]),
    ...kernelShares(region.name, "Its kernels by time"),
  );
}

function showLayer(index) {
  const layer = data.layers[index], count = alike.get(layer.planned_as);
  const against = (compute, streaming) => `${cyclesTime(compute)} against ${cyclesTime(streaming)}`;
  by("details").replaceChildren(
    html("h3", {}, layer.name),
    html("p", { class: "kind" }, `layer ${index + 1} of ${data.layers.length}${count > 1 ? `, one of ${count} alike` : ""}`),
    facts([
      ["A micro-batch", cyclesTime(layer.total_cycles)],
      ["A step", duration(layer.seconds)],
      ["Bound by", layer.bound],
      ["Utilization", percent(layer.utilization, 2)],
      ["Forward, compute against streaming", against(layer.forward_cycles, layer.weights_in_cycles)],
      ["Backward, compute against streaming", against(layer.backward_cycles, layer.weights_in_cycles + layer.gradients_out_cycles)],
      ["Fixed time", cyclesTime(layer.overhead_cycles)],
      ["Weights in, gradients out", `${size(layer.weight_bytes)}, ${size(layer.gradient_bytes)}`],
      ["Spilled off the wafer", layer.spilled_bytes ? size(layer.spilled_bytes) : "none"],
    ]),
    ...kernelShares(layer.planned_as, "Its compute by kernel"),
  );
}

function kernelShares(layer, title) {
  const own = [...(kernelsOf.get(layer) ?? [])].sort((a, b) => b.seconds - a.seconds);
  const whole = own.reduce((sum, kernel) => sum + kernel.seconds, 0);
  if (!whole) return [];
  const kinds = new Map();
  for (const kernel of own) kinds.set(kernel.kind, (kinds.get(kernel.kind) ?? 0) + kernel.seconds);
  const meter = html("div", { class: "meter", "aria-hidden": "true" }, ...[...kinds].sort((a, b) => b[1] - a[1]).map(
    ([kind, seconds]) => style(html("i", { title: `${kind} ${percent(seconds / whole)}` }), { width: `${(100 * seconds) / whole}%`, background: KINDS[kind] })));
  const list = html("ul", { class: "parts" }, ...own.slice(0, 6).map((kernel) => html("li", { title: kernel.name },
    style(html("i"), { background: KINDS[kernel.kind] }), html("span", {}, kernel.name), html("b", {}, percent(kernel.seconds / whole)))));
  return [html("h4", {}, title), meter, list];
}
