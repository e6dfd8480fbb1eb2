// Shows the kernels that contain every word of the search.
const find = document.getElementById("find")
const rows = [...document.querySelectorAll(".kernels tbody tr")]

find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean)
  for (const row of rows) {
    const text = `${row.textContent} ${row.dataset.about}`.toLowerCase()
    row.hidden = !words.every(word => text.includes(word))
  }
  const shown = rows.filter(row => !row.hidden).length
  document.getElementById("count").textContent = words.length ? `${shown} of ${rows.length} kernels` : ""
})
