"use strict";
const data = JSON.parse(document.getElementById("data").textContent), drawn = new Map();
function draw(node, { data: traces, layout }) {
  const ink = getComputedStyle(document.body).color, grid = "rgba(128,128,128,.25)", clear = "rgba(0,0,0,0)";
  const whole = { paper_bgcolor: clear, plot_bgcolor: clear, font: { color: ink }, margin: { l: 50, r: 10, t: 24, b: 44 },
    hovermode: "closest", legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, ...layout };
  for (const key of Object.keys(whole).filter((one) => /^[xy]axis/.test(one)))
    whole[key] = { gridcolor: grid, zerolinecolor: grid, automargin: true, ...whole[key] };
  Plotly.react(node, traces, whole, { responsive: true, displayModeBar: false });
  drawn.set(node, { data: traces, layout });
}
const near = new IntersectionObserver((entries) => entries.filter((one) => one.isIntersecting).forEach(({ target }) => {
  near.unobserve(target);
  draw(target, data.plots[target.dataset.plot]);
}), { rootMargin: "800px" });
document.querySelectorAll("[data-plot]").forEach((node) => near.observe(node));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((one, node) => draw(node, one)));

const choice = document.getElementById("episode");
function show(number) {
  const one = data.episodes[number], names = data.names[one.set], layout = { height: 70 + 74 * names.length, showlegend: false, annotations: [] };
  choice.value = number;
  layout.xaxis = { title: { text: "step" }, anchor: "y" + (names.length > 1 ? names.length : "") };
  const traces = names.map((name, row) => {
    const axis = row ? row + 1 : "", top = 1 - row / names.length;
    layout["yaxis" + axis] = { domain: [top - 0.72 / names.length, top - 0.22 / names.length], nticks: 3, tickfont: { size: 10 } };
    layout.annotations.push({ text: name, xref: "paper", yref: "paper", x: 0, y: top, yanchor: "top", xanchor: "left", showarrow: false, font: { size: 11 } });
    return { type: "scatter", mode: "lines", name, x0: 0, dx: one.every, y: one.y[row], yaxis: "y" + axis, line: { width: 1.2, color: one.shade } };
  });
  draw(document.getElementById("course"), { data: traces, layout });
  document.getElementById("frames").replaceChildren(...one.frames.map((src) => Object.assign(new Image(), { src, alt: "" })));
}
if (choice) {
  choice.addEventListener("change", () => show(+choice.value));
  document.querySelectorAll("[data-step]").forEach((node) => node.addEventListener("click", () =>
    show((+choice.value + +node.dataset.step + data.episodes.length) % data.episodes.length)));
  document.querySelectorAll("[data-episode]").forEach((node) => node.addEventListener("click", () => {
    show(+node.dataset.episode);
    document.getElementById("episodes").scrollIntoView();
  }));
  show(0);
}
