; Calls a compiled function again and again without going back to Python: see farm/runtime/prepared.py.
;
; `sets` points at `nsets` lists of arguments, which take turns. Returns the first code that is not 0, else 0.

define i32 @farm_repeat(ptr %function, ptr %sets, i64 %nsets, i32 %count, i64 %number) {
entry:
  br label %loop
loop:
  %done = phi i64 [ 0, %entry ], [ %next, %good ]
  %set = phi i64 [ 0, %entry ], [ %turn, %good ]
  %slot = getelementptr inbounds ptr, ptr %sets, i64 %set
  %args = load ptr, ptr %slot
  %code = call i32 %function(ptr %args, i32 %count)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %out, label %good
good:
  %next = add i64 %done, 1
  %after = add i64 %set, 1
  %wraps = icmp eq i64 %after, %nsets
  %turn = select i1 %wraps, i64 0, i64 %after
  %more = icmp ult i64 %next, %number
  br i1 %more, label %loop, label %out
out:
  ret i32 %code
}
