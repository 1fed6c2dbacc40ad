// Where the document comes from: the file itself, or a server that announces each change by an event.

const RETRY_MS = 3000;
const POLL_MS = 15000;
const LOST_MS = 30000; // three heartbeats of the server

/**
 * Call `onDocument` with each document, and `onState` with {live, text, bad} whenever the connection changes.
 * A file has one document and no connection.
 */
export function connect(onDocument, onState) {
  const stored = document.getElementById("document");
  if (stored !== null) {
    const content = JSON.parse(stored.textContent);
    onDocument(content);
    onState({ live: false, text: `as of ${new Date(content.taken * 1000).toISOString().slice(0, 19)}Z` });
    return;
  }
  new Connection(onDocument, onState).open();
}

class Connection {
  constructor(onDocument, onState) {
    this.onDocument = onDocument;
    this.onState = onState;
    this.version = "";
    this.lastEvent = Date.now();
    this.fetching = null;
    this.polling = false; // the server has too many viewers
    setInterval(() => this.check(), 2000);
  }

  open() {
    this.events = new EventSource("events");
    const take = (event) => this.take(JSON.parse(event.data));
    this.events.addEventListener("document", take);
    this.events.addEventListener("alive", take);
    this.events.onerror = () => this.failed();
  }

  take(state) {
    this.lastEvent = Date.now();
    this.polling = false;
    this.show(state);
    if (state.version && state.version !== this.version) this.fetch();
  }

  show(state) {
    const parts = ["live"];
    if (state.replica) parts.push(state.leading ? `${state.replica} leads` : `${state.replica} follows ${state.leader || "nobody"}`);
    this.onState({ live: true, text: parts.join(" · "), ...state });
  }

  /** Fetch the latest document. Returns whether it is shown. Calls during a fetch cause one more. */
  async fetch() {
    if (this.fetching) {
      this.again = true;
      return false;
    }
    this.fetching = true;
    try {
      const answer = await fetch("document.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const content = await answer.json();
      this.version = content.version;
      this.onDocument(content);
      return true;
    } catch (error) {
      this.lost(`Connection lost: ${error.message}`);
      return false;
    } finally {
      this.fetching = null;
      if (this.again) {
        this.again = false;
        this.fetch();
      }
    }
  }

  failed() {
    if (!this.polling) this.lost("Connection lost; trying again");
    if (this.events.readyState !== EventSource.CLOSED) return; // the browser tries again itself
    setTimeout(() => this.refused(), this.polling ? 0 : RETRY_MS);
  }

  /** The server refused: it has too many viewers, or there is no right any more, or a proxy has no server. */
  async refused() {
    const answer = await fetch("events", { method: "HEAD" }).catch(() => null);
    this.polling = answer?.status === 503 && await this.fetch();
    if (this.polling) this.onState({ live: true, text: "asks every 15 s: the server has too many viewers" });
    setTimeout(() => this.open(), this.polling ? POLL_MS : 0);
  }

  lost(text) {
    this.onState({ live: true, bad: true, text });
  }

  check() {
    if (this.events.readyState === EventSource.OPEN && Date.now() - this.lastEvent > LOST_MS) {
      this.lastEvent = Date.now();
      this.lost("Connection lost: the server is silent; trying again");
      this.events.close();
      this.open();
    }
  }
}
