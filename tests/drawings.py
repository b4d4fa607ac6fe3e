"""Whether a figure can be read: nothing is cut, every tick has its number, and no text is on another or on the data."""


def assert_nothing_is_cut(figure):
    """Assert that every tick has a number, that all text is inside, and that no text is on another or on the data."""
    # Where everything is when the figure is saved.
    figure.draw_without_rendering()
    numbers = numbers_of(figure)
    others = [legend.get_window_extent() for legend in figure.legends]
    for axes in figure.axes:
        others += [axis.label.get_window_extent() for axis in (axes.xaxis, axes.yaxis) if axis.label.get_text()]
    assert numbers

    boxes = [*numbers.values(), *others]
    for place, box in enumerate(boxes):
        assert figure.bbox.padded(0.5).count_contains([box.min, box.max]) == 2
        assert not any(box.overlaps(axes.bbox) for axes in figure.axes)
        assert not any(box.overlaps(other) for other in boxes[:place])


def numbers_of(figure):
    """Return the boxes of the numbers at the ticks of a figure, by an axis and a number."""
    boxes = {}
    for place, axes in enumerate(figure.axes):
        for axis in (axes.xaxis, axes.yaxis):
            least, most = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                label = tick.label2 if tick.label2.get_visible() else tick.label1
                if least <= tick.get_loc() <= most and label.get_visible():
                    assert label.get_text(), f"a tick at {tick.get_loc()} has no number"
                    boxes[place, axis.axis_name, label.get_text()] = label.get_window_extent()
    return boxes
