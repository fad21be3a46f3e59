// The search runs in a worker. Browsers refuse workers to pages that were opened from a folder, so
// there a hidden frame runs the worker's script. (zensical would fetch such a script from the web.)
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.({ data });
      this.loaded = new Promise((done) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location).href;
        script.onload = () => done((data) => inside.dispatchEvent(new MessageEvent("message", { data })));
        inside.document.body.append(script);
      });
      this.terminate = () => frame.remove();
    }
    postMessage(data) {
      this.loaded.then((send) => send(data));
    }
  };
}
