// SPDX-License-Identifier: Apache-2.0
// Sorting by a column's number (data-sort, or the first one in its text) or its text; showing only rows that
// contain some words; and unfolding what a link points into.
(function () {
  "use strict";
  function key(row, column) {
    var cell = row.children[column];
    var text = cell.textContent.trim();
    var number = parseFloat(cell.dataset.sort || text.replace(/,/g, ""));
    return isNaN(number) ? { text: text } : { number: number, text: text };
  }
  function compare(a, b) {
    if (a.number !== undefined && b.number !== undefined) return a.number - b.number;
    if ((a.number === undefined) !== (b.number === undefined)) return a.number === undefined ? 1 : -1;
    return a.text.localeCompare(b.text, undefined, { numeric: true });
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    table.querySelectorAll("thead th").forEach(function (heading, column) {
      heading.addEventListener("click", function () {
        var up = heading.getAttribute("aria-sort") !== "ascending";
        var body = table.tBodies[0];
        var rows = Array.from(body.rows);
        rows.sort(function (a, b) { return (up ? 1 : -1) * compare(key(a, column), key(b, column)); });
        rows.forEach(function (row) { body.appendChild(row); });
        table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      });
    });
  });
  var filter = document.getElementById("filter");
  filter.addEventListener("input", function () {
    var words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    document.querySelectorAll("details.suite").forEach(function (suite) {
      var shown = 0;
      var rows = suite.querySelectorAll("table.rows tbody tr");
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
        shown += row.hidden ? 0 : 1;
      });
      if (words.length && rows.length && shown) suite.open = true;
    });
  });
  function reveal() {
    var target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (var box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();
})();
