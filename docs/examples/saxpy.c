// farm: saxpy(a: float32, x: float32[1024], y: float32[1024] inout)
void saxpy(float a, const float *x, float *y) {
  for (int i = 0; i < 1024; i++) y[i] += a * x[i];
}
