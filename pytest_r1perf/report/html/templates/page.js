
"use strict";
(function () {
  function open(id) {
    var found = id && document.getElementById(id);
    for (var at = found; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (found) found.scrollIntoView();
  }
  function wanted() {
    try { return decodeURIComponent(location.hash.slice(1)); } catch (error) { return ""; }
  }
  addEventListener("hashchange", function () { open(wanted()); });
  if (location.hash) open(wanted());
  var closed = [];
  addEventListener("beforeprint", function () {
    closed = Array.prototype.slice.call(document.querySelectorAll("details:not([open])"));
    closed.forEach(function (one) { one.open = true; });
  });
  addEventListener("afterprint", function () {
    closed.forEach(function (one) { one.open = false; });
  });
  // Without a script, or where a browser has no clipboard for a file, a click selects the whole command (page.css).
  if (!navigator.clipboard || !navigator.clipboard.writeText) return;
  document.querySelectorAll(".command").forEach(function (one) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(one.querySelector("code").textContent).then(
        function () { button.textContent = "copied"; },
        function () {
          getSelection().selectAllChildren(one.querySelector("code"));
          button.textContent = "press Ctrl-C";
        });
    });
    one.appendChild(button);
  });
})();
