// One thing is selected at a time, a layer or a region; every drawing shows it.
const parts = streaming ? data.layers : data.regions;
let selected = 0;
const views = [];
function select(index) {
  selected = index;
  for (const view of views) view(index);
}
if (parts.length) {
  const weight = (part) => (streaming ? part.total_cycles * alike.get(part.planned_as) : part.cycles);
  selected = parts.reduce((best, part, index) => (weight(part) > weight(parts[best]) ? index : best), 0);
  views.push(streaming ? drawShares() : drawRegions(select));
  views.push(streaming ? drawStreaming(select) : drawPipeline(select));
  views.push(streaming ? drawLayers(select, () => selected) : drawRegionsTable(select, () => selected));
  select(selected);
}
drawKernels();
by("wafer-caption").textContent = `${number(data.columns)} × ${number(data.rows)} PEs, to scale. ` + (streaming
  ? "One layer at a time has the whole fabric: areas are shares of every PE's memory, not places on the wafer."
  : "Each rectangle is the part of the fabric that a region has for itself. Routes are drawn from middle to middle.");
document.documentElement.dataset.drawn = "yes";
