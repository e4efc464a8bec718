// Runs before the first paint, so that a chosen theme never flashes. Without a choice the system's counts.
(() => {
  const root = document.documentElement;
  const choices = ["system", "light", "dark"];

  function stored() {
    try {
      const choice = localStorage.getItem("headrace.theme");
      return choices.includes(choice) ? choice : "system";
    } catch {
      return "system"; // storage is forbidden
    }
  }

  function apply(choice) {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
  }

  function show(button, choice) {
    button.querySelector("[data-theme-name]").textContent = choice;
  }

  apply(stored());
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    let choice = stored();
    show(button, choice);
    button.addEventListener("click", () => {
      choice = choices[(choices.indexOf(choice) + 1) % choices.length];
      try {
        localStorage.setItem("headrace.theme", choice);
      } catch {
        // It holds until the page is left.
      }
      apply(choice);
      show(button, choice);
      document.dispatchEvent(new Event("themechange"));
    });
  });
})();
