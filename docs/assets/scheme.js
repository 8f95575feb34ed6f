// The theme reads the system's choice of light or dark when a page loads; this follows a change.
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => {
  document.body.dataset.mdColorScheme = dark.matches ? "slate" : "default";
  document.body.dataset.mdColorAccent = dark.matches ? "light-blue" : "blue";
});
