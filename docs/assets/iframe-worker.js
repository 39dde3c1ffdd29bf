// A browser starts no worker for a page that was opened from a folder. There the search runs in a
// hidden frame, which has a window of its own and is asked and answers as a worker does.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.ready = load(this.inside, address);
      this.inside.importScripts = (...more) =>
        more.reduce((before, next) => before.then(() => load(this.inside, next)), Promise.resolve());
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  }

  function load(inside, address) {
    return new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      script.src = new URL(address, location.href).href;
      script.onload = done;
      script.onerror = failed;
      inside.document.body.append(script);
    });
  }

  // the search looks for this name to learn that it is in a frame
  window.IFrameWorker = window.Worker = IFrameWorker;
}
