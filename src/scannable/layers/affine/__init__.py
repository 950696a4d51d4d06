"""One template, s_t = E_t ▶ s_(t-1) + f_t, and the ways to run it; every row of Table 1 is an instance of it."""
