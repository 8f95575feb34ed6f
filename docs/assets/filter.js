// Puts an input into each <div class="filter" data-rows="SELECTOR">; it hides the rows that lack one of its words.
for (const place of document.querySelectorAll(".filter")) {
  const rows = [...document.querySelectorAll(place.dataset.rows)];
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("output");
  input.type = "search";
  label.append("Filter ", input);
  place.append(label, count);
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} ${place.dataset.name}`;
  };
  input.addEventListener("input", apply);
  apply();
}
