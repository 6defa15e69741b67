// Search without a server: browsers start no workers from files. A hidden frame
// runs the worker's script instead, and passes its messages on. "iframe-worker"
// in this file's path tells the offline plugin that none has to be downloaded.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.frame.addEventListener("load", () => this.start(url), {once: true});
      document.body.append(this.frame);
    }

    start(url) {
      const inner = this.frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
          inner.document.head.append(script);
        });
      inner.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", {data}));
      inner.importScripts = async (...sources) => {
        for (const source of sources) await load(source);
      };
      load(new URL(url, location.href)).then(
        () => {
          this.send = (data) =>
            inner.dispatchEvent(new inner.MessageEvent("message", {data}));
          this.waiting.forEach(this.send);
        },
        () => this.dispatchEvent(new Event("error")),
      );
    }

    postMessage(data) {
      if (this.send) this.send(data);
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
