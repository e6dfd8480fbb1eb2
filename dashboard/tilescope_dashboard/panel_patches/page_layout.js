{
  // Rows and columns are the browser's to lay out here, and a figure hears of its own size. So what stands apart is laid out alone: a
  // view's place, and what the page has in its drawer.
  const {LayoutDOMView} = Bokeh.require("models/layouts/layout_dom")
  const layout = LayoutDOMView.prototype
  const apart = (view) => /\bplace-/.test(view.model.css_classes) || !(view.parent instanceof LayoutDOMView) || "compiled_module" in view.parent
  layout.compute_layout = function () {
    if (apart(this)) {
      this.measure_layout()
      this.update_bbox()
      this._compute_layout()
      this.after_layout()
    } else this.parent.compute_layout()
    this._layout_computed = true
  }
  layout.invalidate_layout = function () {
    if (!apart(this)) return this.parent.invalidate_layout()
    this.update_layout()
    this.compute_layout()
  }
  // By the time it hears of its new size, what holds it has brought its box up to date: Bokeh would see no change.
  layout.after_resize = function () {
    this._resized = true
    if (this.update_bbox() || (apart(this) && this.layoutable_views.length)) this._after_resize()
    this.finish()
  }
  // What has not been updated since counts on the layout of a figure that is no longer in it: Bokeh asserts that it is there.
  const lost = (view) => {
    let found = false
    view.layout?.children?.foreach?.((_, held) => { found ||= held.layout == null })
    return found || view.layoutable_views.some(lost)
  }
  const computed = layout._compute_layout
  layout._compute_layout = function () {
    if (this.layout != null && lost(this)) this.update_layout()
    computed.call(this)
  }
  // Nothing may be higher there than what holds it, up to the page itself: what is longer than the screen would be squeezed into it,
  // a figure's rows upon each other.
  const styled = layout._update_layout
  layout._update_layout = function () {
    styled.call(this)
    if (this.model.max_height == null) this.style.append(":host", {max_height: "none"})
  }
}
