//! Outlines of products as signed distances: negative inside, positive outside.
//!
//! Coordinates are those of a product that stands upright in `[-1, 1]²`, `y` pointing down. Distances need not be exact;
//! they are zero on the outline, grow about as fast as the true distance, and have the right sign.

/// A point or a direction in the plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
}

impl Point {
    pub(super) fn new(x: f64, y: f64) -> Self {
        Self { x, y }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self::new(self.x - other.x, self.y - other.y)
    }

    pub(super) fn times(self, factor: f64) -> Self {
        Self::new(self.x * factor, self.y * factor)
    }

    pub(super) fn dot(self, other: Self) -> f64 {
        self.x * other.x + self.y * other.y
    }

    pub(super) fn length(self) -> f64 {
        self.dot(self).sqrt()
    }

    /// Turned by an angle whose cosine and sine are given.
    pub(super) fn turned(self, (cosine, sine): (f64, f64)) -> Self {
        Self::new(cosine * self.x - sine * self.y, sine * self.x + cosine * self.y)
    }
}

/// A kind of product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Bottle,
    Carton,
    Mug,
    Shoe,
    Star,
    Ring,
    Gear,
    Lamp,
    Shirt,
    Bag,
    Vase,
    Bear,
}

impl Family {
    pub(super) const ALL: [Self; 12] = [
        Self::Bottle,
        Self::Carton,
        Self::Mug,
        Self::Shoe,
        Self::Star,
        Self::Ring,
        Self::Gear,
        Self::Lamp,
        Self::Shirt,
        Self::Bag,
        Self::Vase,
        Self::Bear,
    ];
}

/// The outline of one product: its kind and four proportions in `[0, 1]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Silhouette {
    pub(super) family: Family,
    pub(super) proportions: [f64; 4],
}

impl Silhouette {
    /// Signed distance from the outline.
    pub(super) fn distance(&self, point: Point) -> f64 {
        let [a, b, c, d] = self.proportions;
        match self.family {
            Family::Bottle => {
                let top = -0.25 + 0.4 * a;
                let body = block(point, 0.0, (top + 0.9) / 2.0, 0.24 + 0.26 * b, (0.9 - top) / 2.0, 0.08);
                let neck = block(point, 0.0, -0.4, 0.09 + 0.1 * c, 0.5, 0.03);
                blended(body, neck, 0.1 + 0.3 * d)
            }
            Family::Carton => {
                let (width, top) = (0.4 + 0.35 * a, -0.75 + 0.5 * b);
                let body = block(point, 0.0, (top + 0.85) / 2.0, width, (0.85 - top) / 2.0, 0.02 + 0.12 * c);
                let roof = taper(point, top - 0.35 * d, top + 0.05, width * 0.45, width);
                body.min(roof)
            }
            Family::Mug => {
                let (width, height) = (0.36 + 0.16 * a, 0.5 + 0.3 * b);
                let body = block(point, -0.18, 0.0, width, height, 0.1);
                let (radius, thickness) = (0.22 + 0.2 * c, 0.06 + 0.07 * d);
                let handle = (point.minus(Point::new(width - 0.18, 0.0)).length() - radius).abs() - thickness;
                body.min(handle)
            }
            Family::Shoe => {
                let sole = capsule(point, -0.75, 0.75, 0.55, 0.1 + 0.1 * a);
                let toe = oval(point, 0.45, 0.4, 0.42, 0.18 + 0.14 * b);
                let heel = block(point, -0.5, 0.2 - 0.35 * c, 0.26 + 0.14 * d, 0.4 + 0.35 * c, 0.1);
                blended(blended(heel, toe, 0.35), sole, 0.06)
            }
            Family::Star => {
                let points = 5.0 + (a * 3.999).floor();
                star(point, points, 0.88, 0.4 + 0.35 * b) - 0.03 * c
            }
            Family::Ring => {
                let squeezed = Point::new(point.x, point.y / (0.65 + 0.35 * a));
                let thickness = 0.12 + 0.2 * b;
                let gem = oval(point, 0.0, -0.62 * (0.65 + 0.35 * a), 0.1 + 0.2 * c, 0.1 + 0.2 * d);
                (((squeezed.length() - 0.9 + thickness).abs() - thickness) * 0.8).min(gem)
            }
            Family::Gear => {
                let teeth = 6.0 + (a * 7.999).floor();
                let wave = libm::cos(teeth * libm::atan2(point.y, point.x));
                let depth = 0.06 + 0.1 * b;
                let rim = point.length() - 0.78 - depth * (3.0 * wave).clamp(-1.0, 1.0);
                rim.max(0.12 + 0.35 * c - point.length())
            }
            Family::Lamp => {
                let shade = taper(point, -0.85, -0.05 + 0.25 * a, 0.15 + 0.3 * b, 0.45 + 0.35 * c);
                let stem = block(point, 0.0, 0.3, 0.05 + 0.05 * d, 0.55, 0.02);
                let foot = oval(point, 0.0, 0.82, 0.3 + 0.25 * b, 0.12);
                shade.min(stem).min(foot)
            }
            Family::Shirt => {
                let body = taper(point, -0.6, 0.85, 0.42 + 0.1 * a, 0.36 + 0.3 * b);
                let mirrored = Point::new(point.x.abs(), point.y);
                let sleeve = segment(mirrored, Point::new(0.32, -0.45), Point::new(0.75, -0.1 + 0.6 * c));
                let neck = 0.14 + 0.16 * d - point.minus(Point::new(0.0, -0.68)).length();
                blended(body, sleeve - 0.17, 0.04).max(neck)
            }
            Family::Bag => {
                let body = taper(point, -0.25 + 0.2 * a, 0.85, 0.4 + 0.25 * b, 0.5 + 0.3 * c) - 0.04;
                let radius = 0.24 + 0.18 * d;
                let strap =
                    (point.minus(Point::new(0.0, -0.25 + 0.2 * a)).length() - radius - 0.1).abs() - 0.07;
                body.min(strap)
            }
            Family::Vase => {
                let belly = oval(point, 0.0, 0.15 + 0.3 * a, 0.4 + 0.3 * b, 0.42);
                let neck = block(point, 0.0, -0.3, 0.1 + 0.12 * c, 0.45, 0.05);
                let rim = block(point, 0.0, -0.78, 0.2 + 0.25 * c, 0.09, 0.05);
                let foot = block(point, 0.0, 0.85, 0.2 + 0.2 * d, 0.08, 0.03);
                blended(blended(belly, neck, 0.3), rim.min(foot), 0.15)
            }
            Family::Bear => {
                let mirrored = Point::new(point.x.abs(), point.y);
                let head = oval(point, 0.0, -0.45, 0.36 + 0.1 * a, 0.34);
                let ear = oval(mirrored, 0.34 + 0.06 * a, -0.74, 0.1 + 0.12 * b, 0.1 + 0.12 * b);
                let trunk = oval(point, 0.0, 0.35, 0.36 + 0.2 * c, 0.48);
                let arm = segment(mirrored, Point::new(0.35, 0.05), Point::new(0.72, -0.15 + 0.5 * d)) - 0.13;
                let leg = oval(mirrored, 0.34, 0.75, 0.2, 0.17);
                blended(head.min(ear), trunk.min(arm).min(leg), 0.06)
            }
        }
    }

    /// Direction in which the distance grows fastest, of length 1 (or 0 where it does not grow).
    pub(super) fn outward(&self, point: Point) -> Point {
        const NEAR: f64 = 1e-3;
        let here = self.distance(point);
        let across = self.distance(Point::new(point.x + NEAR, point.y)) - here;
        let down = self.distance(Point::new(point.x, point.y + NEAR)) - here;
        let slope = Point::new(across, down);
        slope.times(1.0 / slope.length().max(1e-12))
    }
}

/// A box with rounded corners; the sides are twice `width` and `height`.
fn block(point: Point, centre_x: f64, centre_y: f64, width: f64, height: f64, rounding: f64) -> f64 {
    let x = (point.x - centre_x).abs() - width + rounding;
    let y = (point.y - centre_y).abs() - height + rounding;
    Point::new(x.max(0.0), y.max(0.0)).length() + x.max(y).min(0.0) - rounding
}

/// An ellipse, by its half axes.
fn oval(point: Point, centre_x: f64, centre_y: f64, width: f64, height: f64) -> f64 {
    let scaled = Point::new((point.x - centre_x) / width, (point.y - centre_y) / height);
    (scaled.length() - 1.0) * width.min(height)
}

/// A symmetric trapezium between two heights, with its half widths.
fn taper(point: Point, top: f64, bottom: f64, top_width: f64, bottom_width: f64) -> f64 {
    let share = (point.y - top) / (bottom - top);
    let side = point.x.abs() - (top_width + (bottom_width - top_width) * share.clamp(-0.5, 1.5));
    side.max(top - point.y).max(point.y - bottom)
}

/// Distance from a segment.
fn segment(point: Point, from: Point, to: Point) -> f64 {
    let (along, across) = (to.minus(from), point.minus(from));
    let share = (across.dot(along) / along.dot(along)).clamp(0.0, 1.0);
    across.minus(along.times(share)).length()
}

/// A level bar with round ends.
fn capsule(point: Point, left: f64, right: f64, height: f64, radius: f64) -> f64 {
    segment(point, Point::new(left, height), Point::new(right, height)) - radius
}

/// A star, by its outer radius and the inner one as a share of it.
fn star(point: Point, points: f64, outer: f64, inner: f64) -> f64 {
    let sector = std::f64::consts::PI / points;
    let angle = libm::atan2(point.x, -point.y);
    let turns = angle / (2.0 * sector);
    let folded = ((turns - (turns + 0.5).floor()) * 2.0 * sector).abs();
    let radius = point.length();
    let place = Point::new(radius * libm::cos(folded), radius * libm::sin(folded));
    let tip = Point::new(outer, 0.0);
    let notch = Point::new(outer * inner * libm::cos(sector), outer * inner * libm::sin(sector));
    let edge = notch.minus(tip);
    let from_tip = place.minus(tip);
    // The side of the edge on which the centre lies is inside.
    (from_tip.x * edge.y - from_tip.y * edge.x) / edge.length()
}

/// The union of two outlines with a fillet of about this size.
fn blended(one: f64, other: f64, fillet: f64) -> f64 {
    let share = (0.5 + 0.5 * (other - one) / fillet).clamp(0.0, 1.0);
    other + (one - other) * share - fillet * share * (1.0 - share)
}
