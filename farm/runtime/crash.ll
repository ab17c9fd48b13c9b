; Says which line the code came from that a signal ended: see farm/runtime/lines.py.

%row = type { i64, ptr, i64 } ; first address, what to say of it, how long that is

@table = global ptr null
@count = global i64 0
@offset = global i64 0 ; of the instruction pointer in what the system tells a handler

declare i64 @write(i32, ptr, i64)

define void @farm_crashed(i32 %signal, ptr %info, ptr %context) {
entry:
  %table = load ptr, ptr @table
  %count = load i64, ptr @count
  %offset = load i64, ptr @offset
  %at = getelementptr i8, ptr %context, i64 %offset
  %here = load i64, ptr %at
  %some = icmp ugt i64 %count, 1
  br i1 %some, label %each, label %out
each:
  %index = phi i64 [ 0, %entry ], [ %next, %on ]
  %next = add i64 %index, 1
  %row = getelementptr %row, ptr %table, i64 %index
  %following = getelementptr %row, ptr %table, i64 %next
  %first = load i64, ptr %row
  %end = load i64, ptr %following
  %from = icmp uge i64 %here, %first
  %to = icmp ult i64 %here, %end
  %inside = and i1 %from, %to
  br i1 %inside, label %found, label %on
on:
  %after = add i64 %next, 1
  %more = icmp ult i64 %after, %count
  br i1 %more, label %each, label %out
found:
  %at_text = getelementptr %row, ptr %row, i64 0, i32 1
  %at_length = getelementptr %row, ptr %row, i64 0, i32 2
  %text = load ptr, ptr %at_text
  %length = load i64, ptr %at_length
  %said = call i64 @write(i32 2, ptr %text, i64 %length)
  br label %out
out:
  ret void
}
