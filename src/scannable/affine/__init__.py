"""The affine zoo: one template, s_t = E_t ▶ s_(t-1) + f_t, and every row of Table 1 as an instance of it."""
