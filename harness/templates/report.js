// SPDX-License-Identifier: Apache-2.0
// Sorting by a column's first number, or its text; and opening the details that a link points to.
(function () {
  "use strict";
  function key(row, column) {
    var text = row.children[column].textContent.trim();
    var number = parseFloat(text.replace(/,/g, ""));
    return isNaN(number) ? { text: text } : { number: number, text: text };
  }
  function compare(a, b) {
    if (a.number !== undefined && b.number !== undefined) return a.number - b.number;
    if ((a.number === undefined) !== (b.number === undefined)) return a.number === undefined ? 1 : -1;
    return a.text.localeCompare(b.text);
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
  function reveal() {
    var target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    var box = target.closest("details");
    if (box) { box.open = true; target.scrollIntoView(); }
  }
  window.addEventListener("hashchange", reveal);
  reveal();
})();
