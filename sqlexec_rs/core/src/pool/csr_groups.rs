//! Concatenated lists of numbers: thousands of short lists in two allocations.

/// Groups of numbers.
#[derive(Debug)]
pub(crate) struct CsrGroups {
    members: Vec<u32>,
    /// The members of group `g` are `members[starts[g]..starts[g + 1]]`.
    starts: Vec<u32>,
}

impl CsrGroups {
    /// Sorts (group, member) pairs into `n_groups` groups, keeping the order of members.
    pub(crate) fn new(n_groups: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut starts = vec![0_u32; n_groups + 1];
        let mut n_members = 0;
        for (group, _) in pairs.clone() {
            starts[group as usize + 1] += 1;
            n_members += 1;
        }
        for group in 0..n_groups {
            starts[group + 1] += starts[group];
        }
        let mut free = starts.clone();
        let mut members = vec![0; n_members];
        for (group, member) in pairs {
            let next_free = &mut free[group as usize];
            members[*next_free as usize] = member;
            *next_free += 1;
        }
        Self { members, starts }
    }

    /// Returns the members of a group.
    pub(crate) fn of(&self, group: usize) -> &[u32] {
        &self.members[self.starts[group] as usize..self.starts[group + 1] as usize]
    }

    /// Returns the members of all groups, group after group.
    pub(crate) fn all(&self) -> &[u32] {
        &self.members
    }

    /// Returns all members in one list.
    pub(crate) fn into_members(self) -> Vec<u32> {
        self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order() {
        let groups = CsrGroups::new(4, [(2, 5), (0, 1), (2, 3), (3, 0), (0, 1)].into_iter());
        assert_eq!((0..4).map(|group| groups.of(group)).collect::<Vec<_>>(), [&[1, 1][..], &[], &[5, 3], &[0]]);
        assert_eq!(groups.all(), [1, 1, 5, 3, 0]);
    }
}
