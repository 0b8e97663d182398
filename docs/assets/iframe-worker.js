// The search of this site runs in a worker. A page that is opened as a file may not start one, so
// there the same script runs in a hidden frame, with the messages of a worker.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.document.open()
      inside.document.write("<!doctype html><title>search</title><body></body>")
      inside.document.close()
      inside.postMessage = data =>
        setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })))
      const script = inside.document.createElement("script")
      script.src = url
      this.ready = new Promise(resolve => script.addEventListener("load", resolve))
      inside.document.body.append(script)
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
  window.Worker = window.IFrameWorker
}
