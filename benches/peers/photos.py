# placeholder
def crop_box(w,h,rng): return (0,0,w,h)
