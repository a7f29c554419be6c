//! placeholder
use crate::*;
#[derive(Debug, Default)]
struct F(std::collections::VecDeque<Slot>);
impl Policy for F {
    fn name(&self) -> &'static str {
        "f"
    }
    fn touch(&self) -> Touch {
        Touch::Nothing
    }
    fn admit(&mut self, a: &Arrival) {
        self.0.push_back(a.slot)
    }
    fn forget(&mut self, s: Slot) {
        self.0.retain(|o| *o != s)
    }
    fn victim(&mut self, _: &dyn Marks) -> Option<Slot> {
        self.0.pop_front()
    }
}
/// x
pub fn default() -> Box<dyn Policy> {
    Box::<F>::default()
}
