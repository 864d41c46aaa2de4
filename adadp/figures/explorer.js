(function () {
  "use strict";
  function start(root) {
    root.setAttribute("data-ready", "");
    var packed = root.querySelector("script[type='application/json']");
    if (!packed) return;  // a page that was cut: the picture stays as it is
    var data = JSON.parse(packed.textContent);
    var inputs = Array.prototype.slice.call(root.querySelectorAll("input[type=range]"));
    var outputs = root.querySelectorAll("output");
    var targets = [];
    Array.prototype.forEach.call(root.querySelectorAll("[data-k]"), function (element) {
      targets[+element.getAttribute("data-k")] = element;
    });
    var picture = root.querySelector("[role=img]");
    var says = root.querySelector(".ad-says");
    var shown = [];
    function show() {
      var at = inputs.map(function (input) { return +input.value; });
      inputs.forEach(function (input, n) {
        outputs[n].textContent = data.labels[n][at[n]];
        input.setAttribute("aria-valuetext", data.labels[n][at[n]]);
      });
      data.slots.forEach(function (slot, n) {
        var k = slot[3].reduce(function (k, axis) { return k * data.labels[axis].length + at[axis]; }, 0);
        if (shown[n] === slot[4][k]) return;
        shown[n] = slot[4][k];
        var element = targets[slot[0]], text = data.strings[shown[n]];
        if (slot[1] === "") element.textContent = text;
        else if (text === "") element.removeAttribute(slot[1]);
        else if (slot[1] === "d") element.setAttribute("d", text.split("@").join(slot[2]));
        else element.setAttribute(slot[1], text);
      });
      picture.setAttribute("aria-label", says.textContent);
    }
    inputs.forEach(function (input) { input.addEventListener("input", show); });
    root.querySelector(".ad-controls").hidden = false;
    show();
  }
  Array.prototype.forEach.call(document.querySelectorAll(".adadp-explorer:not([data-ready])"), start);
})();
