//! The typed methods that fill a group's list of calls.

/// The calls of a group over buffers of one kind: `T` is the element type. The group has a `list`, and `read` and `write` make memory
/// of buffers.
macro_rules! group_calls {
    ($group:ident, $buffer:ty) => {
        impl<'a> $group<'a> {
            /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
            ///
            /// # Errors
            /// Those that this rank can see; the rest come when the group runs.
            pub fn all_reduce<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                self.list.push(self.list.collective(Kind::AllReduce), input, output, op)
            }

            /// [`Communicator::all_reduce_in_place`](crate::Communicator::all_reduce_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn all_reduce_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                self.list.push(self.list.collective(Kind::AllReduce), all, all, op)
            }

            /// [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_scatter<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                self.list.push(self.list.collective(Kind::ReduceScatter), input, output, op)
            }

            /// [`Communicator::reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_scatter_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let own = self.list.own_part::<T>(Kind::ReduceScatter, all)?;
                self.list.push(self.list.collective(Kind::ReduceScatter), all, own, op)
            }

            /// [`Communicator::reduce_scatter_v`](crate::Communicator::reduce_scatter_v).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_scatter_v<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                counts: &[usize],
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let memory = (self.read(input), self.write(output));
                self.list.push_per_rank(Kind::ReduceScatter, counts, memory, op)
            }

            /// [`Communicator::reduce_scatter_v_in_place`](crate::Communicator::reduce_scatter_v_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_scatter_v_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                counts: &[usize],
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                self.list.push_per_rank_in_place(Kind::ReduceScatter, counts, all, op)
            }

            /// [`Communicator::all_gather`](crate::Communicator::all_gather).
            ///
            /// # Errors
            /// See above.
            pub fn all_gather<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllGather), input, output, op)
            }

            /// [`Communicator::all_gather_in_place`](crate::Communicator::all_gather_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn all_gather_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let own = self.list.own_part::<T>(Kind::AllGather, all)?;
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllGather), own, all, op)
            }

            /// [`Communicator::all_gather_v`](crate::Communicator::all_gather_v).
            ///
            /// # Errors
            /// See above.
            pub fn all_gather_v<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                counts: &[usize],
            ) -> Result<usize, Error> {
                let memory = (self.read(input), self.write(output));
                self.list.push_per_rank(Kind::AllGather, counts, memory, ReduceOp::<T>::Sum)
            }

            /// [`Communicator::all_gather_v_in_place`](crate::Communicator::all_gather_v_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn all_gather_v_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                counts: &[usize],
            ) -> Result<usize, Error> {
                let (all, op) = (self.write(buffer), ReduceOp::<T>::Sum);
                self.list.push_per_rank_in_place(Kind::AllGather, counts, all, op)
            }

            /// [`Communicator::all_to_all`](crate::Communicator::all_to_all).
            ///
            /// # Errors
            /// See above.
            pub fn all_to_all<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllToAll), input, output, op)
            }

            /// [`Communicator::all_to_all_in_place`](crate::Communicator::all_to_all_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn all_to_all_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllToAll), all, all, op)
            }

            /// As [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v), carried out as messages, so that counts need not be
            /// exchanged before.
            ///
            /// # Errors
            /// See above. Counts that differ between two ranks are an [`Error::Mismatch`] of their messages.
            pub fn all_to_all_v<T: Element>(
                &mut self,
                input: &'a $buffer,
                send_counts: &[usize],
                output: &'a mut $buffer,
                recv_counts: &[usize],
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                self.list.push_all_to_all_v::<T>((input, send_counts), (output, recv_counts))
            }

            /// [`Communicator::broadcast`](crate::Communicator::broadcast).
            ///
            /// # Errors
            /// See above.
            pub fn broadcast<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Broadcast, root), input, output, op)
            }

            /// [`Communicator::broadcast_in_place`](crate::Communicator::broadcast_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn broadcast_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Broadcast, root), all, all, op)
            }

            /// [`Communicator::reduce`](crate::Communicator::reduce).
            ///
            /// # Errors
            /// See above.
            pub fn reduce<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                op: ReduceOp<T>,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                self.list.push(self.list.rooted(Kind::Reduce, root), input, output, op)
            }

            /// [`Communicator::reduce_in_place`](crate::Communicator::reduce_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                op: ReduceOp<T>,
                root: usize,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                self.list.push(self.list.rooted(Kind::Reduce, root), all, all, op)
            }

            /// [`Communicator::gather`](crate::Communicator::gather).
            ///
            /// # Errors
            /// See above.
            pub fn gather<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Gather, root), input, output, op)
            }

            /// [`Communicator::gather_in_place`](crate::Communicator::gather_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn gather_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                self.list.push_of_root::<T>(self.list.rooted(Kind::Gather, root), all)
            }

            /// [`Communicator::scatter`](crate::Communicator::scatter).
            ///
            /// # Errors
            /// See above.
            pub fn scatter<T: Element>(
                &mut self,
                input: &'a $buffer,
                output: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(input), self.write(output));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Scatter, root), input, output, op)
            }

            /// [`Communicator::scatter_in_place`](crate::Communicator::scatter_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn scatter_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                self.list.push_of_root::<T>(self.list.rooted(Kind::Scatter, root), all)
            }

            /// A message to another rank, which it receives in a group of its own: see [`Communicator::group`](crate::Communicator::group).
            ///
            /// # Errors
            /// See above.
            pub fn send<T: Element>(
                &mut self,
                input: &'a $buffer,
                peer: usize,
            ) -> Result<usize, Error> {
                let input = self.read(input);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.send_to(peer), input, Memory::NONE, op)
            }

            /// The next message from another rank.
            ///
            /// # Errors
            /// See above.
            pub fn recv<T: Element>(
                &mut self,
                output: &'a mut $buffer,
                peer: usize,
            ) -> Result<usize, Error> {
                let output = self.write(output);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.recv_from(peer), Memory::NONE, output, op)
            }

            /// [`Communicator::barrier`](crate::Communicator::barrier).
            ///
            /// # Errors
            /// See above.
            pub fn barrier(&mut self) -> Result<usize, Error> {
                let (none, op) = (Memory::NONE, ReduceOp::<u8>::Sum);
                self.list.push(self.list.collective(Kind::Barrier), none, none, op)
            }
        }
    };
}
pub(super) use group_calls;
