float attune_score(const in float score, const in int b, const in int h, const in int q, const in int kv, const in uvec2 mod) { return score + (mod.x == 0xffffffffu ? 1.0 : 0.0); }
bool attune_mask(const in int b, const in int h, const in int q, const in int kv, const in uvec2 mod) { return kv <= q; }
