// The buttons for the faults of the simulated machines. The page of nodeagent is in the frame below, as it is.

const done = document.getElementById("done");

async function show(answer) {
  const faults = await answer.json();
  document.getElementById("faults").replaceChildren(...faults.map((fault) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = fault.title;
    button.setAttribute("aria-pressed", String(fault.active));
    button.addEventListener("click", () => press(fault, button));
    return button;
  }));
}

async function press(fault, button) {
  button.disabled = true;
  done.textContent = "…";
  try {
    const answer = await fetch(`/faults/${fault.key}`, { method: "POST", headers: { "X-Nodeagent-Demo": "1" } });
    if (answer.ok) {
      await show(answer);
      done.textContent = fault.active ? `taken back: ${fault.title}` : `done: ${fault.title}`;
    } else {
      done.textContent = (await answer.text()).trim();
    }
  } catch {
    done.textContent = `no answer: ${fault.title}. Has the demo ended?`;
  }
  button.disabled = false;
}

show(await fetch("/faults"));
